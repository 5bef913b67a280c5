// Sessions, leases and references of several workers in virtual time, with every fault of a network
// and an operating system: delays, lost connections whose last messages arrive or do not arrive,
// workers that stop for longer than their lease and continue, workers that die, and clocks that run
// up to 10% too fast or too slow. One worker owns objects; the others create them, pass references
// to each other, use and drop them.
//
// PACELINE_SIMULATION_SEEDS sets how many seeds are tried instead of 1,000 (200 under sanitizers).

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "paceline/engine/rpc/protocol/session.h"
#include "paceline/engine/rpc/references.h"

namespace paceline::rpc::simulation {
namespace {

using namespace std::chrono_literals;

using Time = std::chrono::nanoseconds;  // virtual time of the simulation
constexpr Time kSettled = 300s;  // from here on there are no faults, and all copies are dropped

struct Request {
  enum class Kind : std::uint8_t { kCreate, kHold, kRelease, kPass } kind{};
  ObjectNumber object = 0;
  std::uint64_t number = 0;  // number of the hold or of the pass
};
// The reply of a handler: the number of the created object, or 1 if the hold was given.
using Reply = std::uint64_t;

struct Faults {
  bool cuts = false, pauses = false, deaths = false;
};

class World;

// The state of one worker's calls to another worker.
struct Outgoing {
  CallerSession session;
  CallerLease lease;
  std::map<CallNumber, Request> requests;
  std::uint64_t connection = 0;  // 0: none
  Time opening_sent{};           // time on the worker's clock
};

struct Worker {
  double rate = 1;  // speed of the worker's clock
  bool is_dead = false;
  Time stopped_until{0};
  std::deque<std::function<void()>> waiting;  // actions for when the worker runs again
  std::map<int, Outgoing> calls;              // one for each callee
  struct Session {
    CalleeSession<Reply> callee;
    CalleeLease lease;
    int caller = 0;
    std::uint64_t connection = 0;
  };
  std::map<SessionNumber, Session> sessions;
  // The worker's part as a holder of the owner's objects.
  ReferenceCounts references;
  std::map<ObjectNumber, int> copies;  // copies of references that the program has
  std::multimap<ObjectNumber, std::function<void()>> on_hold;  // handlers that wait for a hold
  // The worker's part as the owner.
  ObjectHolds holds;
  ObjectNumber last_object = 0;
  std::set<ObjectNumber> destroyed;
};

// The owner is worker 0. References are passed between the others.
class World {
 public:
  World(unsigned seed, int num_workers, Faults faults)
      : random_(seed), faults_(faults), workers_(static_cast<std::size_t>(num_workers)) {
    for (Worker& worker : workers_) {
      worker.rate = std::uniform_real_distribution(0.9, 1.1)(random_);
    }
  }

  void run() {
    for (int worker = 1; worker < size(); ++worker) schedule_work(worker);
    for (int worker = 0; worker < size(); ++worker) schedule_look(worker);
    if (faults_.cuts) later(pick(1s, 30s), [this] { cut_some_connection(); });
    if (faults_.pauses) later(pick(1s, 30s), [this] { stop_some_worker(); });
    if (faults_.deaths) later(pick(10s, 300s), [this] { kill_some_worker(); });
    while (!events_.empty() && now_ < kSettled + 200s && !testing::Test::HasFailure()) {
      const auto event = events_.top();
      events_.pop();
      now_ = event.when;
      event.action();
    }
    if (testing::Test::HasFailure()) return;
    EXPECT_EQ(worker(0).holds.num_objects(), 0U) << "objects that nobody holds live on";
    for (int i = 1; i < size(); ++i) {
      EXPECT_TRUE(worker(i).is_dead || worker(i).references.num_objects() == 0);
    }
  }

  int num_uses = 0, num_refused = 0, num_created = 0, num_passed = 0, num_expired = 0;

 private:
  struct Event {
    Time when;
    std::uint64_t number;
    std::function<void()> action;
    bool operator<(const Event& other) const {
      return std::tie(other.when, other.number) < std::tie(when, number);
    }
  };
  struct Connection {
    int caller = 0, callee = 0;
    std::uint64_t number_in_session = 0;
    bool caller_is_there = true, callee_is_there = true;
    bool loses_rest = false;  // messages under way to the callee are lost
    Time last_to_callee{0}, last_to_caller{0};
  };

  int size() const { return static_cast<int>(workers_.size()); }
  Worker& worker(int index) { return workers_[static_cast<std::size_t>(index)]; }
  Time clock(const Worker& worker) const {
    return std::chrono::duration_cast<Time>(now_ * worker.rate);
  }
  Time pick(Time least, Time most) {
    return Time(std::uniform_int_distribution(least.count(), most.count())(random_));
  }
  bool is_settled() const { return now_ >= kSettled; }

  void later(Time delay, std::function<void()> action) {
    events_.push({now_ + delay, ++num_events_, std::move(action)});
  }
  // Lets the worker run `action` as soon as it is not stopped, in the order of the calls; never if
  // it is dead.
  void as(int index, std::function<void()> action) {
    Worker& worker = this->worker(index);
    const bool is_stopped = now_ < worker.stopped_until;
    if (!is_stopped && worker.waiting.empty()) {
      if (!worker.is_dead) action();
      return;
    }
    worker.waiting.push_back(std::move(action));
    if (worker.waiting.size() == 1) later(worker.stopped_until - now_, [=, this] { wake(index); });
  }
  void wake(int index) {
    Worker& worker = this->worker(index);
    while (!worker.waiting.empty()) {
      if (now_ < worker.stopped_until) {
        return later(worker.stopped_until - now_, [=, this] { wake(index); });
      }
      if (!worker.is_dead) worker.waiting.front()();
      worker.waiting.pop_front();
    }
  }

  // ---- the network ----

  void to_callee(std::uint64_t id, std::function<void()> action) {
    Connection& connection = connections_.at(id);
    Time& last = connection.last_to_callee;
    last = std::max(last + 1ns, now_ + pick(10us, 20ms));
    later(last - now_, [=, this] {
      Connection& there = connections_.at(id);
      if (!there.loses_rest && there.callee_is_there) as(there.callee, action);
    });
  }
  void to_caller(std::uint64_t id, std::function<void()> action) {
    Connection& connection = connections_.at(id);
    Time& last = connection.last_to_caller;
    last = std::max(last + 1ns, now_ + pick(10us, 20ms));
    later(last - now_, [=, this] {
      const Connection& there = connections_.at(id);
      if (!there.caller_is_there) return;
      as(there.caller, [=, this] {
        if (connections_.at(id).caller_is_there) action();
      });
    });
  }
  void connect(int caller, int callee) {
    Outgoing& calls = worker(caller).calls[callee];
    if (calls.connection != 0) return;
    if (worker(callee).is_dead) return give_up(caller, callee);
    const std::uint64_t id = ++last_connection_;
    calls.connection = id;
    CallerSession::Steps steps;
    calls.session.connected(steps);
    connections_[id] = {caller, callee, calls.session.connection()};
    carry_out(caller, callee, steps);
  }
  void leave(std::uint64_t id) {
    Connection& connection = connections_.at(id);
    if (!connection.caller_is_there) return;
    connection.caller_is_there = false;
    Outgoing& calls = worker(connection.caller).calls[connection.callee];
    calls.connection = 0;
    calls.session.disconnected();
    calls.lease.interrupt();
    reconnect(connection.caller, connection.callee);
  }
  void reconnect(int caller, int callee) {
    later(pick(1ms, 2s), [=, this] { as(caller, [=, this] { connect(caller, callee); }); });
  }

  // ---- faults ----

  void cut_some_connection() {
    if (is_settled()) return;
    std::vector<std::uint64_t> open;
    for (const auto& [id, connection] : connections_) {
      if (connection.caller_is_there) open.push_back(id);
    }
    if (!open.empty()) {
      const auto id = open[random_() % open.size()];
      connections_.at(id).loses_rest = random_() % 2 == 0;
      as(connections_.at(id).caller, [=, this] { leave(id); });
    }
    later(pick(100ms, 30s), [this] { cut_some_connection(); });
  }
  void stop_some_worker() {
    if (is_settled()) return;
    Worker& stopped = worker(static_cast<int>(random_() % workers_.size()));
    stopped.stopped_until = std::max(stopped.stopped_until, now_ + pick(10ms, 25s));
    later(pick(1s, 60s), [this] { stop_some_worker(); });
  }
  void kill_some_worker() {
    const int index = 1 + static_cast<int>(random_() % (workers_.size() - 1));
    worker(index).is_dead = true;
    for (auto& [id, connection] : connections_) {
      if (connection.caller == index) connection.caller_is_there = false;
      if (connection.callee != index || !connection.caller_is_there) continue;
      connection.callee_is_there = false;
      later(pick(1ms, 1s),
            [=, this, id = id] { as(connections_.at(id).caller, [=, this] { leave(id); }); });
    }
  }

  // ---- calls ----

  CallNumber call(int caller, int callee, Effect effect, Request request) {
    Outgoing& calls = worker(caller).calls[callee];
    CallerSession::Steps steps;
    const Scope scope =
        request.kind == Request::Kind::kHold || request.kind == Request::Kind::kRelease
            ? Scope::kThisSession
            : Scope::kAnySession;
    const CallNumber number = calls.session.begin(effect, scope, steps);
    calls.requests.emplace(number, request);
    carry_out(caller, callee, steps);
    if (calls.connection == 0) connect(caller, callee);
    return number;
  }
  void give_up(int caller, int callee) {
    CallerSession::Steps steps;
    worker(caller).calls[callee].session.give_up_all(~CallNumber{0}, steps);
    carry_out(caller, callee, steps);
  }

  void carry_out(int caller, int callee, const CallerSession::Steps& steps) {
    using Kind = CallerSession::Step::Kind;
    Outgoing& calls = worker(caller).calls[callee];
    const std::uint64_t id = calls.connection;
    const SessionNumber session = calls.session.session();
    for (const auto& step : steps) {
      const CallNumber number = step.number;
      switch (step.kind) {
        case Kind::kOpen:
          calls.opening_sent = clock(worker(caller));
          to_callee(id, [=, this] { on_open(id); });
          break;
        case Kind::kResume:
          calls.opening_sent = clock(worker(caller));
          to_callee(id, [=, this, sent = calls.session.sent()] { on_resume(id, session, sent); });
          break;
        case Kind::kRequest: {
          const Request request = calls.requests.at(number);
          const Effect effect = effect_of(request);
          to_callee(id, [=, this] { on_request(id, session, number, effect, request); });
          break;
        }
        case Kind::kAcknowledge:
          to_callee(id, [=, this] {
            if (auto* there = current(id, session)) there->callee.acknowledge(number);
          });
          break;
        case Kind::kEnded:
          ended(caller, callee, number, step.end, 0);
          break;
      }
    }
  }
  static Effect effect_of(const Request& request) {
    return request.kind == Request::Kind::kPass ? Effect::kAtMostOnce : Effect::kOnce;
  }

  // ---- the callee's end ----

  Worker::Session* current(std::uint64_t id, SessionNumber session) {
    const Connection& connection = connections_.at(id);
    Worker& callee = worker(connection.callee);
    const auto found = callee.sessions.find(session);
    if (found == callee.sessions.end()) {
      refuse(id, session);
      return nullptr;
    }
    if (!found->second.callee.is_current(connection.number_in_session)) return nullptr;
    found->second.lease.heard(clock(callee));
    return &found->second;
  }
  void refuse(std::uint64_t id, SessionNumber session) {
    to_caller(id, [=, this] {
      const Connection& connection = connections_.at(id);
      Outgoing& calls = worker(connection.caller).calls[connection.callee];
      if (calls.session.session() != session) return;
      if (connection.callee == 0) lose_references(connection.caller);
      CallerSession::Steps steps;
      calls.session.refused(session, steps);
      carry_out(connection.caller, connection.callee, steps);
    });
  }
  void on_open(std::uint64_t id) {
    const Connection& connection = connections_.at(id);
    Worker& callee = worker(connection.callee);
    const SessionNumber session = ++last_session_;
    callee.sessions.emplace(session,
                            Worker::Session{CalleeSession<Reply>(connection.number_in_session),
                                            CalleeLease(clock(callee)), connection.caller, id});
    to_caller(id, [=, this] {
      const Connection& there = connections_.at(id);
      Outgoing& calls = worker(there.caller).calls[there.callee];
      calls.lease.begin(calls.opening_sent);
      CallerSession::Steps steps;
      calls.session.opened(session, steps);
      carry_out(there.caller, there.callee, steps);
    });
  }
  void on_resume(std::uint64_t id, SessionNumber session, const std::vector<CallNumber>& sent) {
    const Connection& connection = connections_.at(id);
    Worker& callee = worker(connection.callee);
    const auto found = callee.sessions.find(session);
    if (found == callee.sessions.end()) return refuse(id, session);
    const auto resumption = found->second.callee.resume(connection.number_in_session, sent);
    if (!resumption) return;
    found->second.connection = id;
    found->second.lease.heard(clock(callee));
    to_caller(id, [=, this, known = resumption->known] {
      const Connection& there = connections_.at(id);
      Outgoing& calls = worker(there.caller).calls[there.callee];
      calls.lease.begin(calls.opening_sent);
      CallerSession::Steps steps;
      calls.session.resumed(known, steps);
      carry_out(there.caller, there.callee, steps);
    });
    for (const auto& [number, reply] : resumption->replies) send_reply(id, number, reply);
  }
  void send_reply(std::uint64_t id, CallNumber number, Reply reply) {
    to_caller(id, [=, this] {
      const Connection& there = connections_.at(id);
      CallerSession::Steps steps;
      Outgoing& calls = worker(there.caller).calls[there.callee];
      if (!calls.session.replied(number, steps)) return;
      carry_out(there.caller, there.callee, steps);
      ended(there.caller, there.callee, number, CallEnd::kReplied, reply);
    });
  }
  void on_request(std::uint64_t id, SessionNumber session, CallNumber number, Effect effect,
                  const Request& request) {
    auto* const there = current(id, session);
    if (there == nullptr || !there->callee.admit(number, effect)) return;
    const int index = connections_.at(id).callee;
    Worker& callee = worker(index);
    const auto finish = [=, this](Reply reply) {
      Worker& here = worker(index);
      const auto found = here.sessions.find(session);
      if (found == here.sessions.end() || !found->second.callee.finish(number, reply)) return;
      send_reply(found->second.connection, number, reply);
    };
    ObjectHolds::Destroyed destroyed;
    switch (request.kind) {
      case Request::Kind::kCreate:
        EXPECT_TRUE(callee.holds.create(++callee.last_object, session));
        finish(callee.last_object);
        break;
      case Request::Kind::kHold:
        finish(callee.holds.hold(request.object, session) ? 1 : 0);
        break;
      case Request::Kind::kRelease:
        callee.holds.release(request.object, session, destroyed);
        finish(1);
        break;
      case Request::Kind::kPass:
        received(index, request.object, [=] { finish(1); });
        break;
    }
    note(destroyed);
  }
  void note(const ObjectHolds::Destroyed& destroyed) {
    for (const ObjectNumber object : destroyed) {
      EXPECT_TRUE(worker(0).destroyed.insert(object).second) << "destroyed twice";
    }
  }

  // ---- references ----

  void carry_out(int index, const ReferenceCounts::Steps& steps) {
    for (const auto& [kind, object, hold] : steps) {
      const bool is_hold = kind == ReferenceCounts::Step::Kind::kHold;
      call(index, 0, Effect::kOnce,
           {is_hold ? Request::Kind::kHold : Request::Kind::kRelease, object, hold});
    }
  }
  // A message with a reference has arrived. Its handler continues once this worker has a hold, or
  // has failed to get one.
  void received(int index, ObjectNumber object, std::function<void()> go_on) {
    Worker& here = worker(index);
    ReferenceCounts::Steps steps;
    here.references.receive(object, steps);
    ++here.copies[object];
    if (here.references.is_held(object)) return go_on();
    here.on_hold.emplace(object, std::move(go_on));
    carry_out(index, steps);
  }
  void go_on_with(int index, ObjectNumber object) {
    Worker& here = worker(index);
    const auto [begin, last] = here.on_hold.equal_range(object);
    std::vector<std::function<void()>> waiting;
    for (auto each = begin; each != last; ++each) waiting.push_back(each->second);
    here.on_hold.erase(begin, last);
    for (const auto& go_on : waiting) go_on();
  }
  void lose_references(int index) {
    Worker& here = worker(index);
    ++num_expired;
    here.references.lose_all();
    here.copies.clear();
    while (!here.on_hold.empty()) go_on_with(index, here.on_hold.begin()->first);
  }
  void ended(int caller, int callee, CallNumber number, CallEnd end, Reply reply) {
    Worker& here = worker(caller);
    const Request request = here.calls[callee].requests.extract(number).mapped();
    if (request.kind == Request::Kind::kPass) {
      ReferenceCounts::Steps steps;
      here.references.passed(request.number, end, clock(here) + kDefaultLease, steps);
      carry_out(caller, steps);
    }
    if (end != CallEnd::kReplied) return;  // then the session is lost, and all references with it
    if (request.kind == Request::Kind::kCreate) {
      ++num_created;
      here.references.receive_held(reply);
      ++here.copies[reply];
    } else if (request.kind == Request::Kind::kHold) {
      if (reply == 1) {
        here.references.held(request.object, request.number);
      } else {
        ++num_refused;
        here.references.refused(request.object, request.number);
      }
      go_on_with(caller, request.object);
    }
  }

  // ---- what the programs do ----

  void schedule_work(int index) {
    later(pick(1ms, 3s), [=, this] {
      as(index, [=, this] {
        work(index);
        schedule_work(index);
      });
    });
  }
  void work(int index) {
    Worker& here = worker(index);
    std::erase_if(here.copies, [&](const auto& copy) { return !here.references.has(copy.first); });
    if (is_settled()) {
      while (!here.copies.empty()) drop(index, here.copies.begin()->first);
      return;
    }
    const auto choice = random_() % 8;
    if (here.copies.empty() || choice == 0) {
      call(index, 0, Effect::kOnce, {Request::Kind::kCreate});
      return;
    }
    const auto chosen = static_cast<std::ptrdiff_t>(random_() % here.copies.size());
    const ObjectNumber object = std::next(here.copies.begin(), chosen)->first;
    if (choice < 4) return use(index, object);
    if (choice == 4) return drop(index, object);
    const int other = 1 + static_cast<int>(random_() % (workers_.size() - 1));
    if (other == index || worker(other).is_dead) return;
    ++num_passed;
    const PassNumber pass = here.references.pass(object);
    call(index, other, Effect::kAtMostOnce, {Request::Kind::kPass, object, pass});
    if (choice == 7) drop(index, object);  // at once, while the message is under way
  }
  void drop(int index, ObjectNumber object) {
    Worker& here = worker(index);
    if (--here.copies.at(object) == 0) here.copies.erase(object);
    ReferenceCounts::Steps steps;
    here.references.drop(object, steps);
    carry_out(index, steps);
  }
  // The rule of leases: an object on which a holder relies must exist.
  void use(int index, ObjectNumber object) {
    const Worker& here = worker(index);
    if (!here.references.is_held(object)) return;
    if (!worker(index).calls[0].lease.counts(clock(here))) return;
    ++num_uses;
    EXPECT_TRUE(worker(0).holds.exists(object))
        << "worker " << index << " counts on an object that was destroyed";
  }

  // Renews leases, ends expired ones, and releases holds that were kept for a while.
  void schedule_look(int index) {
    later(100ms, [=, this] {
      as(index, [=, this] {
        look(index);
        schedule_look(index);
      });
    });
  }
  void look(int index) {
    Worker& here = worker(index);
    const Time now = clock(here);
    for (auto& [callee, calls] : here.calls) {
      const auto due = calls.lease.renewal_due();
      const std::uint64_t id = calls.connection;
      if (!due || now < *due || id == 0) continue;
      calls.lease.renewal_sent(now);
      to_callee(id, [=, this, session = calls.session.session()] {
        if (current(id, session) == nullptr) return;
        to_caller(id, [=, this] {
          const Connection& there = connections_.at(id);
          worker(there.caller).calls[there.callee].lease.renewal_confirmed();
        });
      });
    }
    for (auto next = here.sessions.begin(); next != here.sessions.end();) {
      const auto session = next++;
      if (!session->second.lease.has_expired(now)) continue;
      ObjectHolds::Destroyed destroyed;
      here.holds.end_session(session->first, destroyed);
      note(destroyed);
      refuse(session->second.connection, session->first);
      here.sessions.erase(session);
    }
    ReferenceCounts::Steps steps;
    here.references.look(now, steps);
    carry_out(index, steps);
  }

  std::mt19937 random_;
  const Faults faults_;
  std::vector<Worker> workers_;
  std::priority_queue<Event> events_;
  std::map<std::uint64_t, Connection> connections_;
  std::uint64_t num_events_ = 0, last_connection_ = 0;
  SessionNumber last_session_ = 0;
  Time now_{0};
};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kSeeds = 200;
#else
constexpr int kSeeds = 1000;
#endif

int num_seeds() {
  const char* const text = std::getenv("PACELINE_SIMULATION_SEEDS");
  return text == nullptr ? kSeeds : std::atoi(text);
}

struct Total {
  long uses = 0, refused = 0, created = 0, passed = 0, expired = 0;
};
Total simulate(Faults faults, int seeds) {
  Total total;
  for (int seed = 0; seed < seeds && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    World world(static_cast<unsigned>(seed), 4, faults);
    world.run();
    total.uses += world.num_uses;
    total.refused += world.num_refused;
    total.created += world.num_created;
    total.passed += world.num_passed;
    total.expired += world.num_expired;
  }
  std::printf(
      "%d seeds: %ld objects, %ld uses, %ld references passed on, %ld refused, %ld sessions lost\n",
      seeds, total.created, total.uses, total.passed, total.refused, total.expired);
  return total;
}

TEST(ReferencesSimulation, without_faults_no_reference_is_ever_refused) {
  const Total total = simulate({}, num_seeds() / 40);
  EXPECT_EQ(total.refused, 0);
  EXPECT_EQ(total.expired, 0);
  EXPECT_GT(total.passed, 100);
}

TEST(ReferencesSimulation, lost_connections_lose_no_object_that_is_held) {
  const Total total = simulate({.cuts = true}, num_seeds() / 10);
  EXPECT_GT(total.uses, 100);
}

TEST(ReferencesSimulation, what_a_holder_counts_on_exists_and_what_nobody_holds_goes) {
  const Total total = simulate({.cuts = true, .pauses = true, .deaths = true}, num_seeds());
  EXPECT_GT(total.uses, 100);
  EXPECT_GT(total.expired, 10);
}

}  // namespace
}  // namespace paceline::rpc::simulation
