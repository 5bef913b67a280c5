// Workers that are killed, frozen or forked, and strangers. Workers in other processes use a file
// as their store.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include <unistd.h>

#include "paceline/engine/core/system/io.h"
#include "paceline/engine/core/system/socket.h"
#include "paceline/engine/rpc/directory.h"
#include "paceline/engine/store/file_store.h"

#include "tests/engine/rpc/job.h"
#include "tests/engine/rpc/worker_process.h"
#include "tests/harness/fresh_directory.h"
#include "tests/harness/says.h"

namespace paceline::rpc::testing_job {
namespace {

using harness::Says;

struct Total {
  static constexpr std::string_view kName = "total";
  static constexpr Effect kEffect = Effect::kRepeatable;
  using Request = Nothing;
  struct Reply {
    std::vector<std::uint64_t> applied;  // how often each bit was applied
    static auto fields(auto& m) { return std::tie(m.applied); }
  };
};
// Applies update number `bit`, exactly once.
struct Apply {
  static constexpr std::string_view kName = "apply";
  static constexpr Effect kEffect = Effect::kOnce;
  struct Request {
    std::uint64_t bit = 0;
    static auto fields(auto& m) { return std::tie(m.bit); }
  };
  using Reply = Nothing;
};

class Faults : public testing::Test {
 protected:
  std::shared_ptr<Store> open_store() const { return std::make_shared<FileStore>(path_); }
  std::unique_ptr<Workers> join(const std::string& name, std::chrono::milliseconds lease = 10s) {
    JoinOptions options{.store = open_store(), .secret = secret_, .address = "127.0.0.1"};
    options.deadline = 20s;
    options.lease = lease;
    return rpc::join(name, options);
  }
  static void serve_sums(Workers& workers) {
    workers.serve<Add>([](const Add::Request& r, Context&) { return Add::Reply{r.a + r.b}; });
    workers.serve<Wait>([](const Nothing&, Context& context) {
      EXPECT_TRUE(soon([&] { return context.is_cancelled(); }));
      return Nothing{};
    });
  }

  const FreshDirectory directory_;
  const std::string path_ = directory_.file("store");
  const Secret secret_ = Secret::generate();
};

TEST_F(Faults, calls_at_a_worker_that_is_killed_end_and_everybody_sees_it) {
  Process callee([&] {
    const auto workers = join("callee");
    serve_sums(*workers);
    return serve_for_ever();
  });
  const auto caller = join("caller");
  std::mutex mutex;
  std::map<std::string, WorkerInfo::State> seen;
  caller->watch([&](const WorkerInfo& info) {
    const std::lock_guard lock(mutex);
    seen[info.name] = info.state;
  });
  EXPECT_EQ(caller->call<Add>("callee", {2, 3}).get().sum, 5);
  auto call = caller->call<Wait>("callee");
  EXPECT_FALSE(call.is_ready());
  callee.end();
  expect_call_error(CallError::Executed::kUnknown, {"wait of worker callee", "the worker is lost"},
                    [&] { call.get(); });
  expect_call_error(CallError::Executed::kNo, {"add of worker callee", "the worker is lost"}, [&] {
    caller->call<Add>("callee", {2, 3}).get();
  });
  EXPECT_TRUE(soon([&] {
    const std::lock_guard lock(mutex);
    return seen["callee"] == WorkerInfo::State::kLost;
  }));
  // The name can be used again.
  const auto next = join("callee");
  serve_sums(*next);
  EXPECT_EQ(caller->call<Add>("callee", {2, 3}).get().sum, 5);
}

TEST_F(Faults, a_worker_that_nobody_calls_is_found_lost_by_the_next_one) {
  Process silent([&] {
    const auto workers = join("silent");
    return serve_for_ever();
  });
  const auto watcher = join("watcher");
  const auto state = [&] {
    for (const auto& info : watcher->list()) {
      if (info.name == "silent") return std::optional(info.state);
    }
    return std::optional<WorkerInfo::State>();
  };
  EXPECT_TRUE(soon([&] { return state() == WorkerInfo::State::kPresent; }));
  silent.end();
  EXPECT_TRUE(soon([&] { return state() == WorkerInfo::State::kLost; }));
}

TEST_F(Faults, a_worker_frozen_for_longer_than_a_short_lease_is_lost_and_enters_again) {
  Process frozen([&] {
    const auto workers = join("frozen", 500ms);
    return serve_for_ever();
  });
  const auto watcher = join("watcher", 500ms);
  const auto is = [&](WorkerInfo::State state) {
    const auto all = watcher->list();
    return std::any_of(all.begin(), all.end(), [&](const WorkerInfo& info) {
      return info.name == "frozen" && info.state == state;
    });
  };
  ASSERT_TRUE(soon([&] { return is(WorkerInfo::State::kPresent); }));
  frozen.freeze();
  EXPECT_TRUE(soon([&] { return is(WorkerInfo::State::kLost); }));
  frozen.thaw();
  EXPECT_TRUE(soon([&] { return is(WorkerInfo::State::kPresent); }));
}

TEST_F(Faults, a_frozen_worker_costs_its_callers_no_more_than_their_deadlines) {
  Process callee([&] {
    const auto workers = join("callee");
    serve_sums(*workers);
    std::atomic<int> count{0};
    workers->serve<Apply>([&](const Apply::Request&, Context&) {
      ++count;
      return Nothing{};
    });
    workers->serve<Total>([&](const Nothing&, Context&) {
      return Total::Reply{{static_cast<std::uint64_t>(count.load())}};
    });
    return serve_for_ever();
  });
  const auto caller = join("caller");
  EXPECT_EQ(caller->call<Add>("callee", {2, 3}).get().sum, 5);
  callee.freeze();
  expect_call_error(CallError::Executed::kUnknown, {"apply of worker callee", "deadline"},
                    [&] { caller->call<Apply>("callee", {0}, {.deadline = 300ms}).get(); });
  auto patient = caller->call<Apply>("callee", {1});
  EXPECT_FALSE(patient.is_ready());
  callee.thaw();
  patient.get();
  const auto applied = caller->call<Total>("callee").get().applied.front();
  EXPECT_TRUE(applied == 1 || applied == 2) << applied;  // the outcome of the first call is unknown
}

std::atomic<int> num_things{0};
struct Thing {
  static constexpr std::string_view kName = "thing";
  Thing() { ++num_things; }
  ~Thing() { --num_things; }
  Nothing touch(const Nothing& /*nothing*/) { return {}; }
  static auto methods() { return std::tuple(method<&Thing::touch>("touch")); }
};

TEST_F(Faults, a_holder_frozen_for_longer_than_its_lease_has_lost_its_references) {
  Process holder([&] {
    const auto workers = join("holder", 1s);
    RemoteRef<Thing> thing;
    if (!soon([&] {
          try {
            thing = workers->create<Thing>("owner");
            thing.call<&Thing::touch>().get();
            return true;
          } catch (const CallError&) {
            return false;
          } catch (const Error&) {
            return false;
          }
        })) {
      return false;
    }
    // Touches the object until the test has frozen this process for longer than the lease. Calls
    // that were under way then may fail with a CallError.
    for (bool has_expired = false; !has_expired; std::this_thread::sleep_for(20ms)) {
      try {
        thing.call<&Thing::touch>().get();
      } catch (const ReferenceError& error) {
        if (error.reason() != ReferenceError::Reason::kExpired) return false;
        has_expired = true;
      } catch (const CallError& error) {
        if (error.executed() == CallError::Executed::kYes) return false;
      }
    }
    // Once the owner has refused the old session, new calls and objects work.
    return soon([&] {
      try {
        workers->create<Thing>("owner").call<&Thing::touch>().get();
        return true;
      } catch (const Error&) {
        return false;
      }
    });
  });
  const auto owner = join("owner", 1s);
  owner->serve<Thing>();
  EXPECT_TRUE(soon([] { return num_things == 1; }));
  holder.freeze();
  const auto frozen = std::chrono::steady_clock::now();
  EXPECT_TRUE(soon([] { return num_things == 0; }));
  // The thing ends only after most of a lease has passed.
  EXPECT_GE(std::chrono::steady_clock::now() - frozen, 300ms);
  holder.thaw();
  EXPECT_TRUE(holder.succeeds());
}

TEST_F(Faults, a_child_of_fork_cannot_use_its_parent_s_workers_and_does_not_harm_them) {
  auto workers = join("worker");
  serve_sums(*workers);
  EXPECT_EQ(workers->call<Add>("worker", {2, 3}).get().sum, 5);
  Process child([&] {
    try {
      workers->call<Add>("worker", {2, 3});
      return false;
    } catch (const Error& error) {
      if (!testing::Value(error.what(), Says("rpc.forked"))) return false;
    }
    workers->leave();
    workers.reset();
    return true;
  });
  EXPECT_TRUE(child.succeeds());
  EXPECT_EQ(workers->call<Add>("worker", {2, 3}).get().sum, 5);
  EXPECT_EQ(workers->list().front().state, WorkerInfo::State::kPresent);
}

TEST_F(Faults, strangers_at_the_door_are_turned_away) {
  const auto workers = join("worker");
  serve_sums(*workers);
  const auto entry = Directory(open_store(), kDefaultLease).find("worker").value();
  const auto deadline = Deadline::after(20s);
  std::mt19937 random(1);
  std::vector<Fd> silent;
  for (int i = 0; i < 100; ++i) {
    silent.push_back(connect_unix(entry.unix_name, deadline));
    const Fd rude = i % 2 == 0 ? connect_unix(entry.unix_name, deadline)
                               : connect_tcp({entry.tcp_host, entry.tcp_port}, deadline);
    std::vector<std::byte> bytes(static_cast<std::size_t>(i) * 5);
    for (auto& byte : bytes) byte = static_cast<std::byte>(random());
    (void)send_some(rude.get(), bytes);
  }
  const auto caller = join("caller");
  EXPECT_EQ(caller->call<Add>("worker", {2, 3}).get().sum, 5);
}

}  // namespace
}  // namespace paceline::rpc::testing_job
