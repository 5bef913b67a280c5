// The time limit of a group's operations: the program's own, else PACELINE_TIMEOUT, else 30 minutes
// as in PyTorch.

#include <cstdlib>
#include <functional>
#include <span>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/collectives/group/init_process_group.h"
#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/store/memory_store.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/says.h"
#include "tests/harness/watchdog.h"

namespace paceline {
namespace {

using harness::Says;
using testing::AllOf;
using namespace std::chrono_literals;

class GroupTimeout : public testing::Test {
 protected:
  void SetUp() override { unsetenv("PACELINE_TIMEOUT"); }
  void TearDown() override { unsetenv("PACELINE_TIMEOUT"); }
  static void set(const char* text) { ASSERT_EQ(setenv("PACELINE_TIMEOUT", text, 1), 0); }
};

// A separate group of one rank.
std::shared_ptr<ProcessGroup> group_with(const GroupOptions& options = {}) {
  return init_process_group({.rendezvous = {.rank = 0,
                                            .world_size = 1,
                                            .store = std::make_shared<MemoryStore>(),
                                            .secret = Secret::generate()},
                             .group = options});
}

TEST_F(GroupTimeout, is_half_an_hour_unless_the_variable_or_the_program_says_otherwise) {
  EXPECT_EQ(group_with()->timeout(), 30min);
  set("90");
  EXPECT_EQ(group_with()->timeout(), 90s);
  set("0.25");
  EXPECT_EQ(group_with()->timeout(), 250ms);
  set("1e3");
  EXPECT_EQ(group_with()->timeout(), 1000s);
  EXPECT_EQ(group_with({.timeout = 7s})->timeout(), 7s);
  EXPECT_EQ(group_with({.timeout = GroupOptions::kDefaultTimeout})->timeout(), 30min);
}

TEST_F(GroupTimeout, of_nothing_or_less_is_refused_by_every_call) {
  const auto group = group_with();
  int value = 1;
  const auto data = std::span(&value, 1);
  for (const auto none : {0ms, -5ms}) {
    const CollectiveOptions options{.timeout = none};
    const auto ms = fmt::format("{} ms", none.count());
    const std::vector<std::function<void()>> calls = {
        [&] { group->all_reduce(data, ReduceOp::kSum, options); },
        [&] { group->all_reduce(data, ReduceOp::kSum, {.timeout = none, .async_op = true}); },
        [&] { group->barrier(options); }, [&] { group->monitored_barrier(none); },
        [&] { group->allocate_symmetric(64, options); }};
    for (std::size_t i = 0; i < calls.size(); ++i) {
      expect_error(ErrorCode::kInvalid, {"rank 0: CollectiveOptions::timeout is " + ms}, calls[i]);
    }
    expect_error(ErrorCode::kInvalid, {"rank 0: ", "GroupOptions::timeout is " + ms},
                 [&] { group->new_group({0}, GroupOptions{.timeout = none}); });
    expect_error(ErrorCode::kInvalid, {"rank 0: ", "GroupOptions::timeout is " + ms},
                 [&] { group->split(0, 0, GroupOptions{.timeout = none}); });
    expect_error(ErrorCode::kInvalid,
                 {"rank 0: init_process_group: ", "GroupOptions::timeout is " + ms},
                 [&] { group_with({.timeout = none}); });
  }
  group->barrier();  // the refused attempts did not harm the group
}

TEST_F(GroupTimeout, goes_over_to_groups_made_of_the_group_that_have_none_of_their_own) {
  set("90");
  const auto group = group_with();
  EXPECT_EQ(group->new_group({0})->timeout(), 90s);
  EXPECT_EQ(group->split(0, 0)->timeout(), 90s);
  EXPECT_EQ(
      group->new_group({0}, GroupOptions{.link = {.transport = TransportKind::kTcp}})->timeout(),
      90s);
  EXPECT_EQ(group->new_group({0}, GroupOptions{.timeout = 5s})->timeout(), 5s);
  EXPECT_EQ(group_with({.timeout = 7s})->split(0, 0)->timeout(), 7s);
}

TEST_F(GroupTimeout, that_is_not_a_number_of_seconds_is_an_error_that_names_variable_and_rank) {
  for (const char* text :
       {"0", "-1", "0.0001", "1e10", "inf", "nan", "30s", " 30", "30 ", "half", "1e999"}) {
    set(text);
    try {
      group_with();
      ADD_FAILURE() << "'" << text << "' was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalid);
      EXPECT_THAT(error.what(), Says("group.timeout_refused", "rank 0: init_process_group", text));
    }
    // A timeout in the options makes the variable irrelevant.
    EXPECT_EQ(group_with({.timeout = 7s})->timeout(), 7s);
  }
}

TEST_F(GroupTimeout, by_the_variable_ends_a_wait_for_a_rank_that_does_not_arrive) {
  const harness::Watchdog watchdog(60s, "a rank that does not come");
  set("3");
  const auto store = std::make_shared<MemoryStore>();
  const auto secret = Secret::generate();
  std::vector<std::shared_ptr<ProcessGroup>> groups(2);
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        groups[static_cast<std::size_t>(rank)] = init_process_group(
            {.rendezvous = {.rank = rank, .world_size = 2, .store = store, .secret = secret}});
      });
    }
  }
  std::vector<float> data(10);
  try {
    groups[0]->all_reduce(std::span(data));
    ADD_FAILURE() << "rank 1 was not waited for";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kTimeout);
    EXPECT_EQ(error.ranks(), std::vector{1}) << error.what();
    EXPECT_EQ(error.deadline(), 3s) << error.what();
  }
}

}  // namespace
}  // namespace paceline
