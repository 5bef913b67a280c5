// Calls that block without a deadline run on a thread that can be abandoned.

#include "paceline/engine/collectives/backends/blocking_calls.h"

#include <future>
#include <optional>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/transport/formation/connect.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

std::unique_ptr<Mesh> make_mesh() {
  ConnectOptions alone;
  std::string published;
  alone.publish = [&](const std::string& value) { published = value; };
  alone.fetch = [&](const auto& ranks, auto) { return std::vector(ranks.size(), published); };
  return connect_mesh(alone, Secret::generate());
}

class BlockingCallsTest : public testing::Test {
 protected:
  void run(std::function<void()> call, Deadline deadline = Deadline::after(20s)) {
    calls_->run(std::move(call), *mesh_, deadline, "the call");
  }

  const std::unique_ptr<Mesh> mesh_ = make_mesh();
  std::optional<BlockingCalls> calls_{"test-calls"};
};

TEST_F(BlockingCallsTest, are_made_one_after_the_other_in_a_thread_of_their_own) {
  std::vector<std::thread::id> threads;
  for (int i = 0; i < 100; ++i) run([&] { threads.push_back(std::this_thread::get_id()); });
  EXPECT_EQ(threads, std::vector(100, threads.front()));
  EXPECT_NE(threads.front(), std::this_thread::get_id());
  EXPECT_TRUE(calls_->run_until(Deadline::after(20s), [] {}));
}

TEST_F(BlockingCallsTest, throw_the_calls_exception_and_continue) {
  EXPECT_THROW(run([] { throw std::out_of_range("x"); }), std::out_of_range);
  EXPECT_THROW(calls_->run_until(Deadline::after(20s), [] { throw std::out_of_range("x"); }),
               std::out_of_range);
  int made = 0;
  run([&] { ++made; });
  EXPECT_EQ(made, 1);
  EXPECT_FALSE(calls_->given_up());
}

// A call that never returns from a library, with the objects that it uses.
struct Endless {
  std::promise<void> ended;
  std::shared_future<void> end = ended.get_future().share();
  std::shared_ptr<int> used = std::make_shared<int>(1);

  std::function<void()> call() const {
    return [end = end, used = used] { end.wait(); };
  }
};

TEST_F(BlockingCallsTest, are_given_up_at_the_deadline_and_keep_what_they_use) {
  Endless endless;
  const std::weak_ptr<int> used = endless.used;
  try {
    run(endless.call(), Deadline::after(50ms));
    ADD_FAILURE() << "it ended";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kTimeout);
    EXPECT_THAT(error.what(), HasSubstr("the call"));
  }
  EXPECT_TRUE(calls_->given_up());
  endless.used.reset();
  calls_.reset();  // does not wait for the call
  EXPECT_FALSE(used.expired());
  endless.ended.set_value();
  const Deadline deadline = Deadline::after(20s);
  while (!used.expired() && !deadline.expired()) std::this_thread::yield();
  EXPECT_TRUE(used.expired()) << "the thread has not ended";
}

TEST_F(BlockingCallsTest, go_on_when_what_was_given_up_has_ended) {
  Endless endless;
  EXPECT_TRUE(calls_->catch_up(Deadline::after(0ns)));
  const auto late = [wait = endless.call()] {
    wait();
    throw std::out_of_range("nobody hears of it");
  };
  EXPECT_FALSE(calls_->run_until(Deadline::after(10ms), late));
  EXPECT_FALSE(calls_->catch_up(Deadline::after(10ms)));
  EXPECT_TRUE(calls_->given_up());
  endless.ended.set_value();
  EXPECT_TRUE(calls_->catch_up(Deadline::after(20s)));
  EXPECT_FALSE(calls_->given_up());
  int made = 0;
  run([&] { ++made; });
  EXPECT_EQ(made, 1);
}

TEST_F(BlockingCallsTest, are_given_up_when_the_group_is) {
  Endless endless;
  mesh_->abort(Error(ErrorCode::kAborted, "enough"));
  try {
    run(endless.call());
    ADD_FAILURE() << "it ended";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kAborted);
  }
  calls_.reset();
  endless.ended.set_value();
}

TEST_F(BlockingCallsTest, may_be_made_with_a_group_that_has_failed) {
  mesh_->abort(Error(ErrorCode::kAborted, "enough"));
  EXPECT_TRUE(calls_->run_until(Deadline::after(20s), [] {}));
  Endless endless;
  EXPECT_FALSE(calls_->run_until(Deadline::after(10ms), endless.call()));
  EXPECT_TRUE(calls_->given_up());
  calls_.reset();
  endless.ended.set_value();
}

TEST_F(BlockingCallsTest, do_not_end_the_process_by_writing_to_a_peer_that_is_gone) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  close(ends[0]);
  ssize_t written = 0;
  run([&] { std::thread([&] { written = write(ends[1], "x", 1); }).join(); });
  EXPECT_EQ(written, -1);
  run([&] { written = write(ends[1], "x", 1); });
  EXPECT_EQ(written, -1);
  close(ends[1]);
}

}  // namespace
}  // namespace paceline
