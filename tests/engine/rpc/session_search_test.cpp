// An exhaustive search: one or two calls, and a limited number of lost connections, deaths and
// expired sessions, in every order in which they can occur. The rules at the top of
// paceline/engine/rpc/protocol/session.h must hold in each state that can be reached. The state
// machines are the library's; the network, the handlers and the faults are the model below.

#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "paceline/engine/rpc/protocol/session.h"

namespace paceline::rpc::search {
namespace {

using Step = CallerSession::Step;
using Callee = CalleeSession<CallNumber>;  // each handler replies with the number of its call

struct Frame {
  enum class Kind : std::uint8_t {
    kOpen,
    kResume,
    kRequest,
    kAcknowledge,
    kOpened,
    kResumed,
    kRefused,
    kReply
  } kind{};
  SessionNumber session = 0;
  CallNumber number = 0;
  Effect effect{};
  CallNumber reply = 0;
  std::vector<CallNumber> sent{};
  std::vector<KnownCall> known{};
  auto operator<=>(const Frame&) const = default;
};

// One connection. The caller may have left it while frames that it sent are still under way.
struct Pipe {
  std::uint64_t number = 0;
  bool is_left = false;  // whether the caller has left it
  std::deque<Frame> to_callee{}, to_caller{};
  auto operator<=>(const Pipe&) const = default;
};

struct Running {
  SessionNumber session = 0;  // 0: its process has died or its session has expired
  CallNumber number = 0;
  auto operator<=>(const Running&) const = default;
};

// How many events of each kind may still occur.
struct Budget {
  int cuts = 0, deaths = 0, expiries = 0, give_ups = 0;
  auto operator<=>(const Budget&) const = default;
};

struct World {
  CallerSession caller;
  std::vector<Effect> to_begin;          // calls that have not begun, the next one last
  std::map<CallNumber, Effect> effects;  // effects of the calls that have begun
  std::map<CallNumber, CallEnd> ends;    // outcomes that the program has seen
  std::map<CallNumber, int> executions;  // how often each handler has begun
  std::vector<Pipe> pipes;
  std::map<SessionNumber, Callee> sessions;
  SessionNumber last_session = 0;
  std::vector<Running> running;
  Budget budget;
  bool has_lost_sessions = false;
  auto operator<=>(const World&) const = default;

  Pipe* current() {
    if (pipes.empty() || pipes.back().is_left) return nullptr;
    return &pipes.back();
  }
};

// Carries out the steps that the caller's state machine asks for.
void carry_out(World& world, const CallerSession::Steps& steps) {
  for (const Step& step : steps) {
    if (step.kind == Step::Kind::kEnded) {
      ASSERT_TRUE(world.ends.emplace(step.number, step.end).second) << "a call ended twice";
      continue;
    }
    Pipe* const pipe = world.current();
    ASSERT_NE(pipe, nullptr) << "a message without a connection";
    Frame frame{.session = world.caller.session(), .number = step.number};
    switch (step.kind) {
      case Step::Kind::kOpen:
        frame.kind = Frame::Kind::kOpen;
        break;
      case Step::Kind::kResume:
        frame.kind = Frame::Kind::kResume;
        frame.sent = world.caller.sent();
        break;
      case Step::Kind::kRequest:
        frame.kind = Frame::Kind::kRequest;
        frame.effect = world.effects.at(step.number);
        break;
      case Step::Kind::kAcknowledge:
        frame.kind = Frame::Kind::kAcknowledge;
        break;
      case Step::Kind::kEnded:
        break;
    }
    pipe->to_callee.push_back(std::move(frame));
  }
}

void answer(Pipe& pipe, Frame frame) {
  if (!pipe.is_left) pipe.to_caller.push_back(std::move(frame));
}

void deliver_to_callee(World& world, std::size_t index) {
  Pipe& pipe = world.pipes[index];
  const Frame frame = std::move(pipe.to_callee.front());
  pipe.to_callee.pop_front();
  using Kind = Frame::Kind;
  if (frame.kind == Kind::kOpen) {
    const SessionNumber session = ++world.last_session;
    world.sessions.emplace(session, Callee(pipe.number));
    return answer(pipe, {.kind = Kind::kOpened, .session = session});
  }
  const auto found = world.sessions.find(frame.session);
  if (found == world.sessions.end()) {
    return answer(pipe, {.kind = Kind::kRefused, .session = frame.session});
  }
  if (frame.kind == Kind::kResume) {
    const auto resumption = found->second.resume(pipe.number, frame.sent);
    if (!resumption) return;
    answer(pipe, {.kind = Kind::kResumed, .known = resumption->known});
    for (const auto& [number, reply] : resumption->replies) {
      answer(pipe, {.kind = Kind::kReply, .number = number, .reply = reply});
    }
    return;
  }
  if (!found->second.is_current(pipe.number)) return;
  if (frame.kind == Kind::kAcknowledge) return found->second.acknowledge(frame.number);
  if (!found->second.admit(frame.number, frame.effect)) return;
  ++world.executions[frame.number];
  world.running.push_back({frame.session, frame.number});
}

void deliver_to_caller(World& world) {
  Pipe& pipe = world.pipes.back();
  const Frame frame = std::move(pipe.to_caller.front());
  pipe.to_caller.pop_front();
  CallerSession::Steps steps;
  switch (frame.kind) {
    case Frame::Kind::kOpened:
      world.caller.opened(frame.session, steps);
      break;
    case Frame::Kind::kResumed:
      world.caller.resumed(frame.known, steps);
      break;
    case Frame::Kind::kRefused:
      world.caller.refused(frame.session, steps);
      break;
    case Frame::Kind::kReply:
      EXPECT_EQ(frame.reply, frame.number) << "the reply of another call";
      if (world.caller.replied(frame.number, steps)) {
        ASSERT_TRUE(world.ends.emplace(frame.number, CallEnd::kReplied).second);
      }
      break;
    default:
      FAIL() << "not a message to a caller";
  }
  carry_out(world, steps);
}

void finish(World& world, std::size_t index) {
  const Running running = world.running[index];
  world.running.erase(world.running.begin() + static_cast<std::ptrdiff_t>(index));
  const auto session = world.sessions.find(running.session);
  if (session == world.sessions.end()) return;
  if (!session->second.finish(running.number, running.number)) return;
  for (Pipe& pipe : world.pipes) {
    if (!session->second.is_current(pipe.number)) continue;
    answer(pipe, {.kind = Frame::Kind::kReply, .number = running.number, .reply = running.number});
  }
}

void leave_connection(World& world) {
  world.pipes.back().is_left = true;
  world.pipes.back().to_caller.clear();
  world.caller.disconnected();
}

void lose_sessions(World& world) {
  world.sessions.clear();
  world.has_lost_sessions = true;
  for (Running& running : world.running) running.session = 0;
}

struct Next {
  std::string event;
  World world;
};

// All events that may occur in `world`, each with the resulting world.
std::vector<Next> events(const World& world) {
  std::vector<Next> all;
  const auto add = [&](std::string event, const auto& change) {
    all.push_back({std::move(event), world});
    change(all.back().world);
  };
  const bool is_connected = !world.pipes.empty() && !world.pipes.back().is_left;

  if (!world.to_begin.empty()) {
    add("begin a call", [](World& w) {
      CallerSession::Steps steps;
      const Effect effect = w.to_begin.back();
      w.to_begin.pop_back();
      const CallNumber number = w.caller.num_calls() + w.ends.size() + 1;
      w.effects.emplace(number, effect);
      ASSERT_EQ(w.caller.begin(effect, Scope::kAnySession, steps), number);
      carry_out(w, steps);
    });
  }
  if (!is_connected) {
    add("connect", [](World& w) {
      CallerSession::Steps steps;
      w.caller.connected(steps);
      w.pipes.push_back({.number = w.caller.connection()});
      carry_out(w, steps);
    });
  }
  if (is_connected && world.budget.cuts > 0) {
    add("the caller loses the connection, what it sent is on its way", [](World& w) {
      --w.budget.cuts;
      leave_connection(w);
    });
    add("the connection is lost with all that is on its way", [](World& w) {
      --w.budget.cuts;
      leave_connection(w);
      w.pipes.back().to_callee.clear();
    });
  }
  for (std::size_t i = 0; i < world.pipes.size(); ++i) {
    const Pipe& pipe = world.pipes[i];
    if (pipe.to_callee.empty()) continue;
    add(fmt::format("connection {} delivers message {} to the callee", pipe.number,
                    static_cast<int>(pipe.to_callee.front().kind)),
        [i](World& w) { deliver_to_callee(w, i); });
  }
  if (is_connected && !world.pipes.back().to_caller.empty()) {
    add(fmt::format("message {} reaches the caller",
                    static_cast<int>(world.pipes.back().to_caller.front().kind)),
        [](World& w) { deliver_to_caller(w); });
  }
  for (std::size_t i = 0; i < world.running.size(); ++i) {
    add(fmt::format("the handler of call {} ends", world.running[i].number),
        [i](World& w) { finish(w, i); });
  }
  if (world.budget.give_ups > 0) {
    for (const auto& [number, effect] : world.effects) {
      if (world.ends.contains(number)) continue;
      add(fmt::format("the caller gives call {} up", number), [number = number](World& w) {
        --w.budget.give_ups;
        CallerSession::Steps steps;
        w.caller.give_up(number, steps);
        carry_out(w, steps);
      });
    }
  }
  if (world.budget.expiries > 0 && !world.sessions.empty()) {
    add("the sessions expire at the callee", [](World& w) {
      --w.budget.expiries;
      for (auto& [number, session] : w.sessions) {
        for (Pipe& pipe : w.pipes) {
          if (!session.is_current(pipe.number)) continue;
          answer(pipe, {.kind = Frame::Kind::kRefused, .session = number});
        }
      }
      lose_sessions(w);
    });
  }
  if (world.budget.deaths > 0) {
    add("the callee dies and another process takes its name", [](World& w) {
      --w.budget.deaths;
      lose_sessions(w);
      w.running.clear();
      for (Pipe& pipe : w.pipes) {
        pipe.to_callee.clear();
        pipe.to_caller.clear();
      }
      if (w.current() != nullptr) leave_connection(w);
    });
  }
  return all;
}

// Checks rules 1 to 3 and 5 in this state.
void check_state(const World& world) {
  for (const auto& [number, times] : world.executions) {
    if (world.effects.at(number) != Effect::kRepeatable) {
      EXPECT_LE(times, 1) << "call " << number << " was executed again";
    }
  }
  for (const auto& [number, end] : world.ends) {
    const auto found = world.executions.find(number);
    const int times = found == world.executions.end() ? 0 : found->second;
    if (end == CallEnd::kReplied) {
      EXPECT_GE(times, 1) << "call " << number << " has a reply and was not executed";
    } else if (end == CallEnd::kNotExecuted) {
      EXPECT_EQ(times, 0) << "call " << number << " was said not to be executed";
    }
  }
}

// Checks that everything ends if no further faults occur: rule 4, and rule 5 at the end.
void check_end(World world, const Budget& spent) {
  for (int round = 0; round < 100; ++round) {
    auto next = [&]() -> std::optional<World> {
      World quiet = world;
      quiet.budget = {};
      auto all = events(quiet);
      if (all.empty()) return {};
      return std::move(all.back().world);
    }();
    if (!next) break;
    world = std::move(*next);
  }
  EXPECT_EQ(world.ends.size(), world.effects.size()) << "a call never ends";
  for (const auto& [number, end] : world.ends) {
    if (world.effects.at(number) == Effect::kOnce && !world.has_lost_sessions &&
        spent.give_ups == 0) {
      EXPECT_EQ(end, CallEnd::kReplied) << "call " << number << " was to be executed once";
    }
    if (world.effects.at(number) == Effect::kRepeatable && spent.give_ups == 0) {
      EXPECT_EQ(end, CallEnd::kReplied) << "call " << number << " can be repeated";
    }
  }
  std::size_t records = 0;
  for (const auto& [session, callee] : world.sessions) records += callee.num_records();
  EXPECT_EQ(records, 0U) << "the callee keeps records of calls that have ended";
}

struct Visited {
  const World* before = nullptr;
  std::string event;
};

std::string path_to(const std::map<World, Visited>& visited, const World& world) {
  std::string path;
  for (const World* at = &world; at != nullptr;) {
    const Visited& how = visited.at(*at);
    path = "  " + how.event + "\n" + path;
    at = how.before;
  }
  return path;
}

// Returns the number of states; stops at the first one that breaks a rule.
std::size_t search(const std::vector<Effect>& calls, const Budget& budget) {
  std::map<World, Visited> visited;
  std::deque<const World*> next;
  World first;
  first.to_begin = calls;
  first.budget = budget;
  next.push_back(&visited.emplace(first, Visited{nullptr, "begin"}).first->first);
  while (!next.empty()) {
    const World& world = *next.front();
    next.pop_front();
    check_state(world);
    check_end(world, {.give_ups = budget.give_ups - world.budget.give_ups});
    if (::testing::Test::HasFailure()) {
      ADD_FAILURE() << "after these events:\n" << path_to(visited, world);
      break;
    }
    for (Next& event : events(world)) {
      const auto [place, is_new] =
          visited.emplace(std::move(event.world), Visited{&world, std::move(event.event)});
      if (is_new) next.push_back(&place->first);
    }
  }
  return visited.size();
}

struct Instance {
  std::string name;
  Budget budget;
  int calls = 0;
};

class SessionSearch : public testing::TestWithParam<Instance> {};

TEST_P(SessionSearch, the_rules_hold_in_every_state) {
  const auto& [name, budget, num_calls] = GetParam();
  constexpr Effect kAll[] = {Effect::kAtMostOnce, Effect::kRepeatable, Effect::kOnce};
  std::size_t states = 0;
  int mixes = 1;
  for (int i = 0; i < num_calls; ++i) mixes *= 3;
  for (int mix = 0; mix < mixes && !HasFailure(); ++mix) {
    std::vector<Effect> calls;
    for (int i = 0, rest = mix; i < num_calls; ++i, rest /= 3) calls.push_back(kAll[rest % 3]);
    states += search(calls, budget);
  }
  RecordProperty("states", static_cast<int>(states));
  fmt::print("{}: {} states\n", name, states);
  EXPECT_GT(states, 100U);
}

INSTANTIATE_TEST_SUITE_P(
    Instances, SessionSearch,
    testing::Values(Instance{"three_cuts", {.cuts = 3}, 1},
                    Instance{"cut_and_give_up", {.cuts = 1, .give_ups = 1}, 2},
                    Instance{"cut_and_expiry", {.cuts = 1, .expiries = 1}, 2},
                    Instance{"cut_death_give_up", {.cuts = 1, .deaths = 1, .give_ups = 1}, 1},
                    Instance{
                        "all_faults", {.cuts = 1, .deaths = 1, .expiries = 1, .give_ups = 1}, 1}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace paceline::rpc::search
