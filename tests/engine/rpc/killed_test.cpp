// Workers that are killed and frozen at any moment. Executions are counted in memory that outlives
// the workers, and compared with the outcomes that the callers saw.

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <sys/mman.h>

#include "paceline/engine/store/file_store.h"

#include "tests/engine/rpc/job.h"
#include "tests/engine/rpc/relay.h"
#include "tests/engine/rpc/worker_process.h"
#include "tests/harness/fresh_directory.h"
#include "tests/harness/random_seed.h"

namespace paceline::rpc::killed {
namespace {

using namespace testing_job;
using Way = Relay::Way;

constexpr std::size_t kCells = 4 << 20;
constexpr Effect kEffects[] = {Effect::kAtMostOnce, Effect::kRepeatable, Effect::kOnce};

// Memory that a process and its children share.
struct Shared {
  std::array<std::array<std::atomic<std::uint8_t>, kCells>, 3> executed;  // executions by effect
  std::atomic<int> num_alive;                                             // instances of Thing
  std::atomic<int> num_kept, num_usable, num_unusable;
  std::atomic<bool> is_done;
};
Shared& make_shared_memory() {
  void* const place =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (place == MAP_FAILED) throw std::bad_alloc();
  return *new (place) Shared;  // zero-initialized; lives as long as the process
}
Shared* memory_of_this_test = nullptr;
Shared& shared() { return *memory_of_this_test; }

struct Cell {
  std::uint64_t number = 0;
  static auto fields(auto& m) { return std::tie(m.number); }
};
template <Effect E>
struct Apply {
  static constexpr std::array<std::string_view, 3> kNames = {"apply", "apply_again", "apply_once"};
  static constexpr std::string_view kName = kNames[static_cast<std::size_t>(E)];
  static constexpr Effect kEffect = E;
  using Request = Cell;
  using Reply = Nothing;
};

class Thing {
 public:
  static constexpr std::string_view kName = "thing";
  Thing() { ++shared().num_alive; }
  ~Thing() { --shared().num_alive; }
  Nothing touch(const Nothing& /*nothing*/) { return {}; }
  static auto methods() { return std::tuple(method<&Thing::touch>("touch")); }
};
struct Use {
  static constexpr std::string_view kName = "use";
  struct Request {
    RemoteRef<Thing> thing;
    static auto fields(auto& m) { return std::tie(m.thing); }
  };
  using Reply = Nothing;
};

class Killed : public testing::Test {
 protected:
  Killed() { memory_of_this_test = &make_shared_memory(); }  // before children are forked
  std::unique_ptr<Workers> join(const std::string& name, std::chrono::milliseconds lease = 10s,
                                const std::string& host = "") {
    JoinOptions options{.store = open_store(), .secret = secret_, .address = "127.0.0.1"};
    options.host = host;
    options.deadline = 20s;
    options.lease = lease;
    return rpc::join(name, options);
  }
  std::shared_ptr<Store> open_store() const { return std::make_shared<FileStore>(path_); }
  template <Effect E>
  static void serve(Workers& workers) {
    workers.serve<Apply<E>>([](const Cell& cell, Context&) {
      ++shared().executed[static_cast<std::size_t>(E)].at(cell.number);
      return Nothing{};
    });
  }
  static void serve_all(Workers& workers) {
    serve<Effect::kAtMostOnce>(workers);
    serve<Effect::kRepeatable>(workers);
    serve<Effect::kOnce>(workers);
  }
  static int executed(Effect effect, std::size_t cell) {
    return shared().executed[static_cast<std::size_t>(effect)].at(cell);
  }

  // Makes calls with all effects, in groups, while `goes_on` returns true. Each outcome must be
  // true.
  struct Ends {
    int replied = 0, not_executed = 0, unknown = 0;
  };
  template <class GoesOn>
  Ends call_on(Workers& caller, const GoesOn& goes_on) {
    Ends ends;
    while (goes_on() && next_cell_ + 24 <= kCells) {
      std::vector<std::pair<Effect, Future<Nothing>>> futures;
      const std::size_t first = next_cell_;
      for (int i = 0; i < 24; ++i) {
        const Cell cell{next_cell_++};
        switch (kEffects[i % 3]) {
          case Effect::kAtMostOnce:
            futures.emplace_back(kEffects[i % 3],
                                 caller.call<Apply<Effect::kAtMostOnce>>("callee", cell));
            break;
          case Effect::kRepeatable:
            futures.emplace_back(kEffects[i % 3],
                                 caller.call<Apply<Effect::kRepeatable>>("callee", cell));
            break;
          case Effect::kOnce:
            futures.emplace_back(kEffects[i % 3],
                                 caller.call<Apply<Effect::kOnce>>("callee", cell));
            break;
        }
      }
      for (std::size_t i = 0; i < futures.size(); ++i) {
        auto& [effect, future] = futures[i];
        const std::size_t cell = first + i;
        try {
          future.get();
          ++ends.replied;
          EXPECT_GE(executed(effect, cell), 1) << cell;
        } catch (const CallError& error) {
          ++(error.executed() == CallError::Executed::kNo ? ends.not_executed : ends.unknown);
          EXPECT_NE(static_cast<int>(error.executed()),
                    static_cast<int>(CallError::Executed::kYes));
          if (error.executed() == CallError::Executed::kNo)
            not_executed_.emplace_back(effect, cell);
        }
      }
    }
    return ends;
  }
  // Called at the end, when nothing runs any more.
  void check_cells() const {
    for (std::size_t cell = 0; cell < next_cell_; ++cell) {
      EXPECT_LE(executed(Effect::kAtMostOnce, cell), 1) << cell;
      EXPECT_LE(executed(Effect::kOnce, cell), 1) << cell;
    }
    for (const auto& [effect, cell] : not_executed_) EXPECT_EQ(executed(effect, cell), 0) << cell;
  }

  const FreshDirectory directory_;
  const std::string path_ = directory_.file("store");
  const Secret secret_ = Secret::generate();
  std::size_t next_cell_ = 0;
  std::vector<std::pair<Effect, std::size_t>> not_executed_;
};

bool finds(Workers& workers, const std::string& name) {
  for (const auto& info : workers.list()) {
    if (info.name == name) return info.state == WorkerInfo::State::kPresent;
  }
  return false;
}

TEST_F(Killed, a_callee_in_the_middle_of_calls_leaves_no_doubt_that_is_not_said) {
  std::mt19937 random(harness::random_seed());
  std::vector<std::unique_ptr<Process>> callees;
  for (int i = 0; i < 4; ++i) {  // forked before this process has threads
    callees.push_back(std::make_unique<Process>([&, i] {
      // Each callee joins after the previous one, as soon as the name is free.
      std::unique_ptr<Workers> workers;
      EXPECT_TRUE(soon([&] {
        if (shared().num_kept != i) return false;
        workers = join("callee");
        return true;
      }));
      serve_all(*workers);
      ++shared().num_usable;
      return serve_for_ever();
    }));
  }
  const auto caller = join("caller");
  Ends all;
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(soon([&] { return shared().num_usable == i + 1; }));
    const auto until = Deadline::after(std::chrono::milliseconds(50 + random() % 300));
    std::jthread killer([&] {
      std::this_thread::sleep_for(until.remaining());  // the calls below go on meanwhile
      callees[static_cast<std::size_t>(i)]->end();
    });
    const auto ends = call_on(*caller, [&] { return !until.expired(); });
    killer.join();
    all.replied += ends.replied;
    all.unknown += ends.unknown;
    EXPECT_TRUE(soon([&] { return !finds(*caller, "callee"); }));
    ++shared().num_kept;
  }
  check_cells();
  EXPECT_GT(all.replied, 100);
  std::printf("%d replied, %d of unknown end\n", all.replied, all.unknown);
}

// The port of the dead callee refuses a new connection, so nobody waits for its lease.
TEST_F(Killed, a_callee_of_another_host_is_lost_at_once) {
  Process callee([&] {
    const auto workers = join("callee", 60s, "far");
    serve_all(*workers);
    return serve_for_ever();
  });
  const auto caller = join("caller", 60s, "near");
  ASSERT_TRUE(soon([&] { return finds(*caller, "callee"); }));
  // As if it were another machine, whose processes this one cannot see.
  const auto store = open_store();
  WorkerEntry entry = Directory(store, 60s).find("callee").value();
  entry.host = "another machine";
  write_entry(*store, entry);
  const auto apply = [&] { caller->call<Apply<Effect::kOnce>>("callee", Cell{0}).get(); };
  ASSERT_TRUE(soon([&] {
    try {
      apply();
      return true;
    } catch (const CallError&) {  // the callee may not serve the method yet
      return false;
    }
  }));
  callee.end();
  expect_error(ErrorCode::kPeerLost, {"callee"}, apply);
  EXPECT_FALSE(finds(*caller, "callee"));
}

TEST_F(Killed, a_caller_in_the_middle_of_calls_is_not_served_twice) {
  std::mt19937 random(harness::random_seed());
  std::vector<std::unique_ptr<Process>> callers;
  for (std::size_t i = 0; i < 4; ++i) {
    callers.push_back(std::make_unique<Process>([&, i] {
      const auto workers = join("caller" + std::to_string(i));
      if (!soon([&] { return finds(*workers, "callee"); })) return false;
      next_cell_ = i * (kCells / 4);
      call_on(*workers, [] { return true; });
      return false;
    }));
  }
  const auto callee = join("callee", 300ms);
  serve_all(*callee);
  for (std::size_t i = 0; i < callers.size(); ++i) {
    const auto& cells = shared().executed[0];
    EXPECT_TRUE(soon([&] { return cells.at(i * (kCells / 4)) == 1; }));
    // The calls continue for this long.
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 200));
    callers[i]->end();
  }
  callee->leave();
  next_cell_ = kCells;
  check_cells();
}

TEST_F(Killed, a_caller_that_is_frozen_again_and_again_is_told_the_truth) {
  std::mt19937 random(harness::random_seed());
  Process caller([&] {
    const auto workers = join("caller");
    if (!soon([&] { return finds(*workers, "callee"); })) return false;
    const auto ends = call_on(*workers, [] { return !shared().is_done; });
    check_cells();
    shared().num_usable = ends.replied;
    return ends.replied > 0;
  });
  const auto callee = join("callee", 300ms);
  serve_all(*callee);
  EXPECT_TRUE(soon([] { return executed(Effect::kOnce, 2) == 1; }));
  for (int i = 0; i < 10; ++i) {
    // The calls continue for this long.
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 50));
    caller.freeze();
    // Sometimes shorter, sometimes longer than the callee's lease.
    std::this_thread::sleep_for(std::chrono::milliseconds(i % 2 == 0 ? 50 : 600));
    caller.thaw();
  }
  shared().is_done = true;
  EXPECT_TRUE(caller.succeeds());
  EXPECT_GT(shared().num_usable, 100);
}

// ---- messages without a reply ----

// A caller gets its credit back, even for messages that are handled after their session has
// expired.
TEST_F(Killed, a_frozen_caller_that_told_much_may_tell_again) {
  std::atomic<bool> may_end{false};
  Process caller([&] {
    JoinOptions options{.store = open_store(), .secret = secret_, .address = "127.0.0.1"};
    const auto workers = rpc::join("caller", options);
    if (!soon([&] { return finds(*workers, "callee"); })) return false;
    const auto tell = [&] {
      try {
        workers->tell<Wait>("callee");
        return true;
      } catch (const CallError&) {
        return false;
      }
    };
    workers->call<Add>("callee", {1, 2}).get();  // the reply tells the caller its credit: 4 calls
    while (tell()) ++shared().num_kept;
    if (!soon([] { return shared().is_done.load(); })) return false;
    for (int i = 0; i < 20; ++i) {
      if (!soon(tell)) return false;
    }
    return true;
  });
  JoinOptions options{.store = open_store(), .secret = secret_, .address = "127.0.0.1"};
  options.lease = 300ms;
  options.max_calls = 4;
  const auto callee = rpc::join("callee", options);
  std::atomic<int> num_begun{0};
  std::atomic<int> num_told{0};
  callee->serve<Add>([](const Add::Request& r, Context&) { return Add::Reply{r.a + r.b}; });
  callee->serve<Wait>([&](const Nothing&, Context&) {
    ++num_begun;
    EXPECT_TRUE(soon([&] { return may_end.load(); }));
    ++num_told;
    return Nothing{};
  });
  callee->serve<Thing>();
  // A message that still waits inside the frozen caller would be lost with the session.
  EXPECT_TRUE(soon([&] { return shared().num_kept == 4 && num_begun == 4; }));
  caller.freeze();
  std::this_thread::sleep_for(1s);  // the session expires in this time
  may_end = true;
  EXPECT_TRUE(soon([&] { return num_told == 4; }));
  caller.thaw();
  shared().is_done = true;
  EXPECT_TRUE(caller.succeeds());
}

// ---- references whose sender, receiver or owner dies on the way ----

// The sender passes a reference to the receiver and dies. Until then the receiver's connection to
// the owner is cut, so that the receiver has no hold of its own.
class Deaths : public Killed {
 protected:
  static constexpr auto kLease = 1s;
  // Body of the sender's process. "receiver" keeps the reference and counts whether it is usable.
  bool send_and_wait() {
    const auto workers = join("sender", kLease, "sender's");
    if (!soon([&] { return finds(*workers, "owner") && finds(*workers, "receiver"); })) {
      return false;
    }
    const auto thing = workers->create<Thing>("owner");
    thing.call<&Thing::touch>().get();
    workers->call<Add>("receiver", {1, 2}).get();  // the connection now exists
    ++shared().num_kept;
    if (!soon([] { return shared().is_done.load(); })) return false;
    auto passed = workers->call<Use>("receiver", {thing});
    ++shared().num_kept;
    return serve_for_ever();
  }
  void serve_use(Workers& receiver) {
    receiver.serve<Add>([](const Add::Request& r, Context&) { return Add::Reply{r.a + r.b}; });
    receiver.serve<Use>([this](const Use::Request& request, Context&) {
      note_use(request.thing);
      return Nothing{};
    });
  }
  void note_use(const RemoteRef<Thing>& thing) {
    try {
      thing.call<&Thing::touch>().get();
      ++shared().num_usable;
      const std::lock_guard lock(mutex_);
      kept_.push_back(thing);
    } catch (const ReferenceError&) {
      ++shared().num_unusable;
    } catch (const std::exception& error) {
      ADD_FAILURE() << "not a typed error: " << error.what();
    }
  }
  std::mutex mutex_;
  std::vector<RemoteRef<Thing>> kept_;
};

TEST_F(Deaths, the_sender_dies_before_the_receiver_has_a_hold_of_its_own) {
  Process sender([&] { return send_and_wait(); });
  const auto owner = join("owner", kLease, "owner's");
  owner->serve<Thing>();
  const auto receiver = join("receiver", kLease, "receiver's");
  serve_use(*receiver);
  // The receiver connects to the owner through the relay. So may the sender, which no longer needs
  // the owner.
  Relay relay(open_store(), "owner", {});
  EXPECT_TRUE(soon([] { return shared().num_kept == 1; }));
  relay.cut(Way::kToCallee, true);
  shared().is_done = true;
  EXPECT_TRUE(soon([] { return shared().num_kept == 2; }));
  sender.end();
  EXPECT_TRUE(soon([] { return shared().num_alive == 0; }));  // the object is not leaked
  relay.cut(Way::kToCallee, false);
  EXPECT_TRUE(soon([] { return shared().num_usable + shared().num_unusable == 1; }));
  EXPECT_EQ(shared().num_unusable, 1);
}

TEST_F(Deaths, the_sender_dies_and_the_receiver_is_in_time) {
  Process sender([&] { return send_and_wait(); });
  const auto owner = join("owner", 5s, "owner's");
  owner->serve<Thing>();
  const auto receiver = join("receiver", kLease, "receiver's");
  serve_use(*receiver);
  shared().is_done = true;
  EXPECT_TRUE(soon([] { return shared().num_kept == 2; }));
  sender.end();
  EXPECT_TRUE(soon([] { return shared().num_usable + shared().num_unusable == 1; }));
  EXPECT_EQ(shared().num_usable, 1);
  {
    const std::lock_guard lock(mutex_);
    for (const auto& thing : kept_) thing.call<&Thing::touch>().get();
    kept_.clear();
  }
  EXPECT_TRUE(soon([] { return shared().num_alive == 0; }));
}

TEST_F(Deaths, the_receiver_dies_before_it_uses_the_reference) {
  Process receiver([&] {
    const auto workers = join("receiver", kLease);
    workers->serve<Use>([](const Use::Request& request, Context&) {
      ++shared().num_kept;
      serve_for_ever();
      (void)request;
      return Nothing{};
    });
    return serve_for_ever();
  });
  const auto owner = join("owner", kLease);
  owner->serve<Thing>();
  const auto sender = join("sender", kLease);
  ASSERT_TRUE(soon([&] { return finds(*sender, "receiver"); }));
  std::optional<RemoteRef<Thing>> thing = sender->create<Thing>("owner");
  std::optional<Future<Nothing>> call;
  ASSERT_TRUE(soon([&] {  // the receiver may not serve the method yet
    call = sender->call<Use>("receiver", {*thing});
    if (soon([&] { return shared().num_kept == 1 || call->is_ready(); })) {
      return shared().num_kept == 1;
    }
    return false;
  }));
  receiver.end();
  expect_call_error(CallError::Executed::kUnknown, {"use of worker receiver", "lost"},
                    [&] { call->get(); });
  thing->call<&Thing::touch>().get();
  thing.reset();
  EXPECT_TRUE(soon([] { return shared().num_alive == 0; }));
}

TEST_F(Deaths, the_owner_dies_first) {
  Process owner([&] {
    const auto workers = join("owner", kLease);
    workers->serve<Thing>();
    return serve_for_ever();
  });
  const auto sender = join("sender", kLease);
  const auto receiver = join("receiver", kLease);
  serve_use(*receiver);
  RemoteRef<Thing> thing;
  ASSERT_TRUE(soon([&] {
    try {
      thing = sender->create<Thing>("owner");
      thing.call<&Thing::touch>().get();
      return true;
    } catch (const Error&) {  // the owner has not joined yet
      return false;
    }
  }));
  owner.end();
  sender->call<Use>("receiver", {thing}).get();
  EXPECT_EQ(shared().num_unusable, 1);
  try {
    thing.call<&Thing::touch>().get();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const ReferenceError& error) {
    EXPECT_EQ(error.reason(), ReferenceError::Reason::kOwnerLost) << error.what();
  }
}

}  // namespace
}  // namespace paceline::rpc::killed
