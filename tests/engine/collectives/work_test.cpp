// Callbacks that run when an operation has ended (Work::on_complete), and operations started there.

#include "paceline/engine/collectives/work.h"

#include <atomic>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using harness::run_ranks;
using harness::run_ranks_ok;
using testing::ElementsAre;
using testing::HasSubstr;

std::exception_ptr failure() {
  return std::make_exception_ptr(Error(ErrorCode::kTimeout, "too slow"));
}

TEST(BlockingCalls, return_a_work_that_has_completed) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    const WorkPtr work = group.barrier();
    EXPECT_TRUE(work->is_completed());
    work->wait();
    work->wait(std::chrono::milliseconds(1));
    std::vector<float> values{1};
    bool is_called = false;
    group.all_reduce(std::span(values))->on_complete([&](const Error* error) {
      is_called = error == nullptr;
    });
    EXPECT_TRUE(is_called);
  });
}

TEST(OnComplete, is_called_once_and_in_order_when_the_operation_ends) {
  Work work([] { return std::string("test"); });
  std::vector<std::string> heard;
  work.on_complete([&](const Error* error) { heard.push_back(error ? error->what() : "first"); });
  work.on_complete([&](const Error* error) { heard.push_back(error ? error->what() : "second"); });
  EXPECT_TRUE(heard.empty());
  work.complete(nullptr);
  EXPECT_THAT(heard, ElementsAre("first", "second"));
  work.complete(failure());  // only the first end counts
  work.on_complete([&](const Error* error) { heard.push_back(error ? error->what() : "late"); });
  EXPECT_THAT(heard, ElementsAre("first", "second", "late"));
}

TEST(OnComplete, has_the_error_before_and_after) {
  Work work([] { return std::string("test"); });
  std::vector<std::string> heard;
  const auto keep = [&](const Error* error) { heard.push_back(error ? error->what() : "none"); };
  work.on_complete(keep);
  work.complete(failure());
  work.on_complete(keep);
  EXPECT_THAT(heard, ElementsAre("too slow", "too slow"));
}

TEST(OnComplete, starts_the_next_operation) {
  run_ranks_ok(3, [](ProcessGroup& group) {
    std::vector<float> first(100'000, 1), second(100'000, 2);
    std::atomic<bool> is_started = false;
    WorkPtr next;
    const auto work = group.all_reduce(std::span(first), ReduceOp::kSum, {.async_op = true});
    work->on_complete([&](const Error* error) {
      EXPECT_EQ(error, nullptr);
      EXPECT_EQ(first.back(), 3);
      next = group.all_reduce(std::span(second), ReduceOp::kSum, {.async_op = true});
      is_started = true;
      is_started.notify_one();
    });
    work->wait();
    is_started.wait(false);
    next->wait();
    EXPECT_EQ(second.front(), 6);
  });
}

TEST(OnComplete, hears_of_a_rank_that_left) {
  const auto results = run_ranks(2, [](ProcessGroup& group) {
    if (group.rank() == 1) return;
    std::vector<float> data(1000);
    std::string heard;
    const auto work = group.all_reduce(std::span(data), ReduceOp::kSum, {.async_op = true});
    std::atomic<bool> is_over = false;
    work->on_complete([&](const Error* error) {
      heard = error ? error->what() : "nothing";
      is_over = true;
      is_over.notify_one();
    });
    is_over.wait(false);
    EXPECT_THAT(heard, HasSubstr("rank 1"));
    work->wait();
  });
  EXPECT_TRUE(results[0].error);
}

}  // namespace
}  // namespace paceline
