// DeviceWatch with events that a test sets by hand.

#include "paceline/engine/collectives/backends/nccl/device_watch.h"

#include <atomic>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/core/check.h"

#include "tests/harness/wait_until.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

using Event = std::atomic<bool>;

DeviceEvent own(Event& event) { return {std::shared_ptr<void>(), &event}; }

// The outcome of an operation: "under way", "done", or its error.
std::string outcome_of(const WorkPtr& work) {
  std::string outcome = "under way";
  if (!work->is_completed()) return outcome;
  work->on_complete(
      [&](const Error* error) { outcome = error == nullptr ? "done" : error->what(); });
  return outcome;
}

class DeviceWatchTest : public testing::Test {
 protected:
  WatchHooks hooks() {
    return {.self = "rank 0",
            .group = "world",
            .begin = [] {},
            .is_done = [](void* event) { return static_cast<Event*>(event)->load(); },
            .check_failures =
                [this] {
                  if (has_peer_failed) fail(ErrorCode::kPeerLost, "rank 1 has died");
                },
            .fail =
                [this](const Error& error) {
                  ++num_failures;
                  return error;
                }};
  }
  static WorkPtr add(DeviceWatch& watch, Event& event, Deadline deadline = Deadline::after(60s)) {
    auto work = std::make_shared<Work>([] { return std::string("an operation"); });
    watch.add({.work = work,
               .done = own(event),
               .deadline = deadline,
               .what = "all_reduce #3",
               .name = "all_reduce"});
    return work;
  }
  static void expect_end(const WorkPtr& work) {
    EXPECT_TRUE(harness::wait_until([&] { return work->is_completed(); }, Deadline::after(10s)));
  }

  std::atomic<bool> has_peer_failed = false;
  std::atomic<int> num_failures = 0;
};

TEST_F(DeviceWatchTest, completes_each_operation_when_its_event_is_reached) {
  DeviceWatch watch(hooks());
  Event first = false, second = false;
  const WorkPtr one = add(watch, first), two = add(watch, second);
  second = true;
  expect_end(two);
  EXPECT_EQ(outcome_of(two), "done");
  EXPECT_EQ(outcome_of(one), "under way");
  first = true;
  expect_end(one);
  EXPECT_EQ(outcome_of(one), "done");
  EXPECT_FALSE(watch.has_failed());
}

TEST_F(DeviceWatchTest, ends_an_operation_at_its_deadline) {
  Event never = false;
  DeviceWatch watch(hooks());
  const WorkPtr work = add(watch, never, Deadline::after(50ms));
  expect_end(work);
  EXPECT_THAT(outcome_of(work), HasSubstr("rank 0: all_reduce #3 of group world timed out"));
  EXPECT_EQ(num_failures, 1);
  never = true;  // so that the watch can end
}

TEST_F(DeviceWatchTest, ends_all_operations_when_a_peer_has_failed) {
  Event never = false;
  DeviceWatch watch(hooks());
  const WorkPtr one = add(watch, never), two = add(watch, never);
  has_peer_failed = true;
  for (const WorkPtr& work : {one, two}) {
    expect_end(work);
    EXPECT_EQ(outcome_of(work),
              "rank 1 has died; the device had not finished all_reduce #3 of group world");
  }
  EXPECT_EQ(num_failures, 1);
  never = true;
}

TEST_F(DeviceWatchTest, gives_its_error_to_operations_after_a_failure) {
  Event never = false;
  DeviceWatch watch(hooks());
  has_peer_failed = true;
  expect_end(add(watch, never));
  ASSERT_TRUE(watch.has_failed());
  const WorkPtr late = add(watch, never);
  EXPECT_THAT(outcome_of(late), HasSubstr("rank 1 has died"));
  EXPECT_EQ(watch.count(), 0);
  never = true;
}

TEST_F(DeviceWatchTest, waits_for_its_operations_when_it_ends) {
  Event event = false;
  WorkPtr work;
  std::jthread device;
  {
    DeviceWatch watch(hooks());
    work = add(watch, event);
    device = std::jthread([&] {
      std::this_thread::sleep_for(30ms);
      event = true;
    });
  }
  EXPECT_EQ(outcome_of(work), "done");
}

}  // namespace
}  // namespace paceline
