#include "paceline/engine/collectives/group/call_order.h"

#include <future>
#include <system_error>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/harness/expect_error.h"
#include "tests/harness/no_new_threads.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

void run(const CallOrder::Operation& operation, const WaitOptions& wait) { operation(wait); }

// Adds a call of `body` that keeps the object `keep` alive, and returns its Work.
WorkPtr add(CallOrder& order, std::function<void()> body, std::shared_ptr<void> keep = nullptr) {
  auto work = std::make_shared<Work>([] { return "an operation"; });
  order.add({[body = std::move(body)](const WaitOptions&) { body(); }, Deadline::after(30s), work,
             std::move(keep)});
  return work;
}

TEST(CallOrderTest, a_thread_gets_the_turn_only_when_no_operation_is_under_way) {
  CallOrder order(run);
  std::promise<void> gate;
  {
    const CallOrder::Turn turn(order);
    EXPECT_TRUE(turn);
    EXPECT_FALSE(CallOrder::Turn(order));
    EXPECT_TRUE(order.is_busy());
  }
  EXPECT_FALSE(order.is_busy());
  const auto first = add(order, [&] { gate.get_future().wait(); });
  EXPECT_FALSE(CallOrder::Turn(order));
  gate.set_value();
  first->wait();
  EXPECT_TRUE(CallOrder::Turn(order));
}

TEST(CallOrderTest, waiting_calls_run_in_order_once_the_turn_is_given_back) {
  CallOrder order(run);
  std::vector<int> ran;
  std::vector<WorkPtr> works;
  {
    const CallOrder::Turn turn(order);
    ASSERT_TRUE(turn);
    for (int i = 0; i < 100; ++i) works.push_back(add(order, [&ran, i] { ran.push_back(i); }));
    EXPECT_FALSE(works.front()->is_completed());
  }
  works.back()->wait();
  ASSERT_EQ(ran.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(ran[static_cast<std::size_t>(i)], i);
}

TEST(CallOrderTest, a_call_whose_thread_cannot_be_started_is_not_under_way) {
  CallOrder order(run);
  bool is_run = false;
  {
    const harness::NoNewThreads none;
    EXPECT_THROW(add(order, [&] { is_run = true; }), std::system_error);
  }
  EXPECT_FALSE(order.is_busy());
  EXPECT_TRUE(CallOrder::Turn(order));
  add(order, [] {})->wait();
  EXPECT_FALSE(is_run);
}

TEST(CallOrderTest, operations_never_overlap_whether_they_take_the_turn_or_wait_in_the_queue) {
  CallOrder order(run);
  int inside = 0, most = 0, ran = 0;  // only the running operation may access these
  const auto operation = [&] {
    most = std::max(most, ++inside);
    ++ran;
    --inside;
  };
  constexpr int kCalls = 2000;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kCalls; ++i) {
          if (const CallOrder::Turn turn(order); turn && t % 2 == 0) {
            operation();
            continue;
          }
          add(order, operation)->wait();
        }
      });
    }
  }
  EXPECT_FALSE(order.is_busy());
  EXPECT_EQ(most, 1);
  EXPECT_EQ(ran, 4 * kCalls);
}

TEST(CallOrderTest, a_call_drops_the_object_that_it_keeps_alive_before_its_work_completes) {
  CallOrder order(run);
  auto kept = std::make_shared<int>(0);
  const std::weak_ptr<int> seen = kept;
  const auto work = add(
      order, [] { throw Error(ErrorCode::kAborted, "no"); }, std::move(kept));
  EXPECT_THROW(work->wait(), Error);
  EXPECT_TRUE(seen.expired());
}

TEST(CallOrderTest, the_destructor_waits_for_all_added_calls) {
  int ran = 0;
  {
    CallOrder order(run);
    for (int i = 0; i < 50; ++i) add(order, [&] { ++ran; });
  }
  EXPECT_EQ(ran, 50);
}

TEST(CallOrderTest, a_call_may_hold_the_last_reference_to_its_own_order) {
  auto order = std::make_shared<CallOrder>(run);
  const std::weak_ptr<CallOrder> seen = order;
  std::promise<void> gate;
  bool ran = false;
  const auto owning = add(
      *order, [&] { gate.get_future().wait(); }, order);
  const auto next = add(*order, [&] { ran = true; });
  EXPECT_EQ(order->names_under_way(), std::vector<std::string>(2, "an operation"));
  order.reset();
  EXPECT_FALSE(seen.expired());
  gate.set_value();
  owning->wait();
  EXPECT_TRUE(seen.expired());
  expect_error(ErrorCode::kAborted, {"destroyed before"}, [&] { next->wait(); });
  EXPECT_FALSE(ran);
}

}  // namespace
}  // namespace paceline
