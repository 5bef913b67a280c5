// A machine that sleeps for longer than a lease: CLOCK_BOOTTIME continues in the meantime,
// CLOCK_MONOTONIC does not, and no process runs. The test simulates this with a jump of
// CLOCK_BOOTTIME.

#include <atomic>
#include <ctime>
#include <string>
#include <vector>

#include <sys/syscall.h>
#include <unistd.h>

#include "tests/engine/rpc/job.h"
#include "tests/engine/rpc/relay.h"

namespace {
std::atomic<std::time_t> slept{0};  // seconds
}

// Replaces the C library's function in the whole program.
extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const long status = ::syscall(SYS_clock_gettime, clock, time);
  if (status == 0 && clock == CLOCK_BOOTTIME) time->tv_sec += slept;
  return static_cast<int>(status);
}

namespace paceline::rpc::suspend {
namespace {

using namespace testing_job;

std::atomic<int> num_things{0};
class Thing {
 public:
  static constexpr std::string_view kName = "thing";
  Thing() { ++num_things; }
  ~Thing() { --num_things; }
  Nothing touch(const Nothing& /*nothing*/) { return {}; }
  static auto methods() { return std::tuple(method<&Thing::touch>("touch")); }
};

constexpr auto kLease = 10min;
constexpr std::time_t kSleep = 3600;

class Suspend : public testing::Test {
 protected:
  Suspend() {
    owner_->serve<Thing>();
    owner_->serve<Add>([](const Add::Request& r, Context&) { return Add::Reply{r.a + r.b}; });
    owner_->serve<Count>([this](const Nothing&, Context&) {
      ++num_counted_;
      return Nothing{};
    });
  }
  std::unique_ptr<Workers> join(const std::string& name) {
    auto options = job_.options();
    options.lease = kLease;
    options.host = name;
    return job_.join(name, options);
  }
  // Whether the reference is usable; if not, the error must say that its lease has expired.
  static bool is_usable(const RemoteRef<Thing>& thing) {
    try {
      thing.call<&Thing::touch>({}, {.deadline = 2s}).get();
      return true;
    } catch (const ReferenceError& error) {
      EXPECT_EQ(error.reason(), ReferenceError::Reason::kExpired) << error.what();
    } catch (const CallError&) {  // the call was under way when its session was lost
    }
    return false;
  }
  // New calls and objects must work. The first calls may still belong to the old session.
  void expect_usable() {
    EXPECT_TRUE(soon([&] { return is_usable(holder_->create<Thing>("owner")); }));
    holder_->call<Count>("owner").get();
    EXPECT_EQ(num_counted_, 1);
    EXPECT_EQ(holder_->call<Add>("owner", {2, 3}).get().sum, 5);
  }

  Job job_;
  std::unique_ptr<Workers> owner_ = join("owner"), holder_ = join("holder");
  std::atomic<int> num_counted_{0};
};

TEST_F(Suspend, for_longer_than_a_lease_ends_references_with_a_typed_error) {
  Relay relay(job_.options().store, "owner", {});
  const auto thing = holder_->create<Thing>("owner");
  EXPECT_TRUE(is_usable(thing));
  // No renewal may arrive before both workers have noticed how late it is.
  relay.cut(Relay::Way::kToCallee, true);
  slept += kSleep;
  EXPECT_FALSE(is_usable(thing));
  EXPECT_TRUE(soon([] { return num_things == 0; }));
  relay.cut(Relay::Way::kToCallee, false);
  expect_usable();
}

TEST_F(Suspend, leaves_calls_and_references_that_work_or_say_why_not) {
  std::atomic<bool> may_end{false};
  owner_->serve<Wait>([&](const Nothing&, Context&) {
    EXPECT_TRUE(soon([&] { return may_end.load(); }));
    return Nothing{};
  });
  auto thing = holder_->create<Thing>("owner");
  EXPECT_TRUE(is_usable(thing));
  auto under_way = holder_->call<Wait>("owner");
  EXPECT_FALSE(under_way.is_ready());
  slept += kSleep;
  for (int i = 0; i < 20; ++i) {
    (void)is_usable(thing);
    std::this_thread::sleep_for(20ms);  // makes no more than 50 rounds per second
  }
  may_end = true;
  try {
    under_way.get();
  } catch (const CallError& error) {  // its session has expired
    EXPECT_EQ(static_cast<int>(error.executed()), static_cast<int>(CallError::Executed::kUnknown));
  }
  thing = {};
  expect_usable();
  EXPECT_TRUE(soon([] { return num_things == 0; }));
}

TEST(SuspendedWorkers, make_nobody_lose_another) {
  Job job;
  std::vector<std::unique_ptr<Workers>> workers;
  for (const char* const name : {"a", "b", "c"}) workers.push_back(job.join(name));
  std::atomic<int> num_lost{0}, num_looks{0};
  workers[0]->watch([&](const WorkerInfo& info) {
    ++num_looks;
    if (info.state == WorkerInfo::State::kLost) ++num_lost;
  });
  EXPECT_TRUE(soon([&] { return num_looks >= 3; }));
  slept += kSleep;
  std::this_thread::sleep_for(3s);  // nothing may change in this time
  EXPECT_EQ(num_lost, 0);
  for (const auto& info : workers[0]->list()) EXPECT_EQ(info.state, WorkerInfo::State::kPresent);
}

}  // namespace
}  // namespace paceline::rpc::suspend
