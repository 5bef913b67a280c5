// An exhaustive search: one object, a worker that created it and a worker to which it passes
// references, and a limited number of abandoned calls, expired leases and deaths, in every order in
// which events can occur. In each state, an object on which a holder relies must exist. At the end,
// an object without holders must have been destroyed. The search runs the library's tables
// (paceline/engine/rpc/references.h). It assumes that sessions keep the order of their messages,
// and that a holder stops relying on its lease before the owner ends it, as session_search_test.cpp
// and protocol/session.h guarantee.

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "paceline/engine/rpc/references.h"

namespace paceline::rpc::references_search {
namespace {

constexpr ObjectNumber kObject = 1;
constexpr LeaseTime kNow{0}, kLater{1};

struct Message {
  enum class Kind : std::uint8_t { kHold, kRelease, kHeld, kNotHeld, kLost } kind{};
  SessionNumber session = 0;
  std::uint64_t hold = 0;
};

struct Holder {
  ReferenceCounts counts{};
  SessionNumber session = 0;
  int copies = 0;  // copies of the reference that the program has
  bool lease_counts = true, is_dead = false;
  std::vector<PassNumber> waiting{};  // handlers that wait until their worker has a hold
  std::deque<Message> to_owner{}, from_owner{};
};

// How many events of each kind may still occur.
struct Budget {
  int passes = 0, give_ups = 0, expiries = 0, deaths = 0;
};

struct World {
  ObjectHolds owner;
  std::array<Holder, 2> holders;
  std::set<SessionNumber> sessions = {1, 2};
  SessionNumber last_session = 2;
  std::vector<PassNumber> open;  // passes of the first holder whose outcome it has not seen
  std::deque<PassNumber> to_receiver, to_sender;
  Budget budget;
  bool was_refused = false;
};

int num_copies(ReferenceCounts counts) {
  int copies = 0;
  for (ReferenceCounts::Steps steps; steps.empty() && counts.has(kObject); ++copies) {
    counts.drop(kObject, steps);
  }
  return copies;
}
std::uint64_t last_hold(const ReferenceCounts& counts) {
  for (std::uint64_t hold = 0; hold < 20; ++hold) {
    ReferenceCounts probe = counts;
    probe.refused(kObject, hold);
    if (probe.has(kObject) != counts.has(kObject)) return hold;
  }
  return 99;
}
bool holds(ObjectHolds owner, const std::set<SessionNumber>& sessions, SessionNumber holder) {
  ObjectHolds::Destroyed destroyed;
  for (const SessionNumber other : sessions) {
    if (other != holder) owner.end_session(other, destroyed);
  }
  return owner.exists(kObject);
}

// Everything that determines the further events.
std::string key_of(const World& world) {
  std::string key;
  const auto put = [&](auto number) { key += std::to_string(number) + ","; };
  for (const Holder& holder : world.holders) {
    ReferenceCounts settled = holder.counts;
    ReferenceCounts::Steps steps;
    settled.look(kLater, steps);
    put(num_copies(holder.counts));
    put(num_copies(settled));
    put(holder.counts.is_held(kObject));
    put(last_hold(holder.counts));
    put(holder.copies);
    put(holder.lease_counts);
    put(holder.is_dead);
    put(holder.session);
    for (const auto pass : holder.waiting) put(pass);
    for (const auto* queue : {&holder.to_owner, &holder.from_owner}) {
      key += ";";
      for (const auto& message : *queue) {
        put(static_cast<int>(message.kind));
        put(message.session);
        put(message.hold);
      }
    }
    key += "|";
  }
  for (const SessionNumber session : world.sessions) {
    put(session);
    put(world.owner.exists(kObject) && holds(world.owner, world.sessions, session));
  }
  key += "|";
  for (const auto pass : world.open) put(pass);
  key += ";";
  for (const auto pass : world.to_receiver) put(pass);
  key += ";";
  for (const auto pass : world.to_sender) put(pass);
  const Budget& left = world.budget;
  return key + fmt::format("|{},{},{},{}", left.passes, left.give_ups, left.expiries, left.deaths);
}

void carry_out(Holder& holder, const ReferenceCounts::Steps& steps) {
  for (const auto& step : steps) {
    const bool is_hold = step.kind == ReferenceCounts::Step::Kind::kHold;
    holder.to_owner.push_back(
        {is_hold ? Message::Kind::kHold : Message::Kind::kRelease, holder.session, step.hold});
  }
}
// Resumes the handlers that waited: their callers get the replies.
void go_on(World& world) {
  for (const auto pass : std::exchange(world.holders[1].waiting, {})) {
    world.to_sender.push_back(pass);
  }
}

void deliver_to_owner(World& world, Holder& holder) {
  const Message message = holder.to_owner.front();
  holder.to_owner.pop_front();
  if (!world.sessions.contains(message.session)) return;
  ObjectHolds::Destroyed destroyed;
  if (message.kind == Message::Kind::kRelease) {
    world.owner.release(kObject, message.session, destroyed);
    return;
  }
  const bool is_held = world.owner.hold(kObject, message.session);
  holder.from_owner.push_back(
      {is_held ? Message::Kind::kHeld : Message::Kind::kNotHeld, message.session, message.hold});
}

void deliver_to_holder(World& world, Holder& holder) {
  const Message message = holder.from_owner.front();
  holder.from_owner.pop_front();
  if (message.session != holder.session) return;
  switch (message.kind) {
    case Message::Kind::kHeld:
      holder.counts.held(kObject, message.hold);
      break;
    case Message::Kind::kNotHeld:
      world.was_refused = true;
      holder.counts.refused(kObject, message.hold);
      if (!holder.counts.has(kObject)) holder.copies = 0;
      break;
    default:  // the session is lost
      holder.counts.lose_all();
      holder.copies = 0;
      holder.to_owner.clear();
      holder.session = ++world.last_session;
      world.sessions.insert(holder.session);
      holder.lease_counts = true;
      break;
  }
  const bool is_settled = holder.counts.is_held(kObject) || !holder.counts.has(kObject);
  if (&holder == &world.holders[1] && is_settled) go_on(world);
}

void receive(World& world) {
  Holder& receiver = world.holders[1];
  const PassNumber pass = world.to_receiver.front();
  world.to_receiver.pop_front();
  if (receiver.is_dead) return;
  ReferenceCounts::Steps steps;
  receiver.counts.receive(kObject, steps);
  ++receiver.copies;
  carry_out(receiver, steps);
  if (receiver.counts.is_held(kObject)) {
    world.to_sender.push_back(pass);
  } else {
    receiver.waiting.push_back(pass);
  }
}

void end_pass(World& world, PassNumber pass, CallEnd end) {
  if (std::erase(world.open, pass) == 0) return;
  ReferenceCounts::Steps steps;
  world.holders[0].counts.passed(pass, end, kLater, steps);
  carry_out(world.holders[0], steps);
}

struct Next {
  std::string event;
  World world;
};

// `quietly`: only events without faults, and programs that only drop references.
std::vector<Next> events(const World& world, bool quietly) {
  std::vector<Next> all;
  const auto add = [&](std::string event, const auto& change) {
    all.push_back({std::move(event), world});
    change(all.back().world);
  };
  for (const std::size_t i : {0UL, 1UL}) {
    const Holder& holder = world.holders[i];
    const char* const name = i == 0 ? "the sender" : "the receiver";
    if (!holder.to_owner.empty()) {
      add(fmt::format("the owner hears {}", name),
          [i](World& w) { deliver_to_owner(w, w.holders[i]); });
    }
    if (!holder.is_dead && !holder.from_owner.empty()) {
      add(fmt::format("{} hears the owner", name),
          [i](World& w) { deliver_to_holder(w, w.holders[i]); });
    }
    // Copies of waiting handlers are not dropped.
    if (!holder.is_dead && holder.copies > static_cast<int>(holder.waiting.size())) {
      add(fmt::format("{} drops a copy", name), [i](World& w) {
        ReferenceCounts::Steps steps;
        --w.holders[i].copies;
        w.holders[i].counts.drop(kObject, steps);
        carry_out(w.holders[i], steps);
      });
    }
    if (!quietly && !holder.is_dead && holder.lease_counts && world.budget.expiries > 0) {
      add(fmt::format("{} counts on its lease no more", name), [i](World& w) {
        --w.budget.expiries;
        w.holders[i].lease_counts = false;
      });
    }
    const bool may_expire = holder.is_dead || !holder.lease_counts;
    if (may_expire && world.sessions.contains(holder.session)) {
      add(fmt::format("the owner ends the session of {}", name), [i](World& w) {
        ObjectHolds::Destroyed destroyed;
        Holder& expired = w.holders[i];
        w.owner.end_session(expired.session, destroyed);
        w.sessions.erase(expired.session);
        expired.from_owner.push_back({Message::Kind::kLost, expired.session});
      });
    }
    if (!quietly && !holder.is_dead && world.budget.deaths > 0) {
      add(fmt::format("{} dies", name), [i](World& w) {
        --w.budget.deaths;
        w.holders[i].is_dead = true;
      });
    }
  }
  const Holder& sender = world.holders[0];
  if (!quietly && !sender.is_dead && sender.copies > 0 && world.budget.passes > 0) {
    add("the sender passes a copy on", [](World& w) {
      --w.budget.passes;
      const PassNumber pass = w.holders[0].counts.pass(kObject);
      w.open.push_back(pass);
      w.to_receiver.push_back(pass);
    });
  }
  if (!world.to_receiver.empty()) add("the receiver gets it", [](World& w) { receive(w); });
  if (!sender.is_dead && !world.to_sender.empty()) {
    add("the sender has the reply", [](World& w) {
      const PassNumber pass = w.to_sender.front();
      w.to_sender.pop_front();
      end_pass(w, pass, CallEnd::kReplied);
    });
  }
  if (!sender.is_dead && !world.open.empty() && (quietly || world.budget.give_ups > 0)) {
    add("the sender does not know how the call ended", [quietly](World& w) {
      if (!quietly) --w.budget.give_ups;
      end_pass(w, w.open.front(), CallEnd::kUnknown);
    });
  }
  ReferenceCounts kept = sender.counts;
  ReferenceCounts::Steps steps;
  kept.look(kLater, steps);
  if (!sender.is_dead && num_copies(kept) != num_copies(sender.counts)) {
    add("a lease has passed since", [](World& w) {
      ReferenceCounts::Steps released;
      w.holders[0].counts.look(kLater, released);
      carry_out(w.holders[0], released);
    });
  }
  return all;
}

void check_state(const World& world, const Budget& budget) {
  for (const Holder& holder : world.holders) {
    if (holder.is_dead || !holder.lease_counts || !holder.counts.is_held(kObject)) continue;
    EXPECT_TRUE(world.owner.exists(kObject)) << "a holder counts on what was destroyed";
  }
  if (budget.give_ups + budget.expiries + budget.deaths == 0) {
    EXPECT_FALSE(world.was_refused) << "a reference was refused without a fault";
  }
}
void check_end(World world) {
  for (int round = 0; round < 200; ++round) {
    auto all = events(world, true);
    if (all.empty()) break;
    world = std::move(all.front().world);
  }
  EXPECT_FALSE(world.owner.exists(kObject)) << "nobody holds the object, and it lives on";
  for (const Holder& holder : world.holders) {
    EXPECT_TRUE(holder.is_dead || holder.counts.num_objects() == 0);
    EXPECT_TRUE(holder.is_dead || holder.waiting.empty()) << "a handler waits for ever";
  }
}

struct Visited {
  std::string before, event;
};

std::size_t search(const Budget& budget) {
  World first;
  first.budget = budget;
  first.holders[0].session = 1;
  first.holders[1].session = 2;
  EXPECT_TRUE(first.owner.create(kObject, 1));
  first.holders[0].counts.receive_held(kObject);
  first.holders[0].copies = 1;
  std::map<std::string, Visited> visited = {{key_of(first), {"", "begin"}}};
  std::deque<std::pair<std::string, World>> next;
  next.emplace_back(key_of(first), first);
  while (!next.empty()) {
    const auto [key, world] = std::move(next.front());
    next.pop_front();
    check_state(world, budget);
    check_end(world);
    if (testing::Test::HasFailure()) {
      std::string path;
      for (std::string at = key; !at.empty(); at = visited.at(at).before) {
        path = "  " + visited.at(at).event + "\n" + path;
      }
      ADD_FAILURE() << "after these events:\n" << path;
      break;
    }
    for (Next& event : events(world, false)) {
      const std::string after = key_of(event.world);
      if (visited.emplace(after, Visited{key, std::move(event.event)}).second) {
        next.emplace_back(after, std::move(event.world));
      }
    }
  }
  return visited.size();
}

struct Instance {
  std::string name;
  Budget budget;
};
class ReferencesSearch : public testing::TestWithParam<Instance> {};

TEST_P(ReferencesSearch, what_a_holder_counts_on_exists_in_every_state) {
  const auto& [name, budget] = GetParam();
  const std::size_t states = search(budget);
  RecordProperty("states", static_cast<int>(states));
  fmt::print("{}: {} states\n", name, states);
  EXPECT_GT(states, 100U);
}
INSTANTIATE_TEST_SUITE_P(
    Instances, ReferencesSearch,
    testing::Values(Instance{"three_passes", {.passes = 3}},
                    Instance{"passes_that_are_given_up", {.passes = 2, .give_ups = 2}},
                    Instance{"leases_that_run_out", {.passes = 2, .expiries = 2}},
                    Instance{"a_death", {.passes = 2, .deaths = 1}},
                    Instance{"every_fault",
                             {.passes = 2, .give_ups = 1, .expiries = 1, .deaths = 1}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace paceline::rpc::references_search
