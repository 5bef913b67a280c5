// Groups that another library forms with its own store (init_part_of_world), and the check that a
// thread makes while it waits (WaitCheck).

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/collectives/group/world_setup.h"
#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/store/memory_store.h"
#include "paceline/engine/store/prefix_store.h"

#include "tests/harness/says.h"

namespace paceline {
namespace {

using harness::Says;
using testing::HasSubstr;
using namespace std::chrono_literals;

using Body = std::function<void(ProcessGroup& group)>;

// Forms a group of these ranks of a world of 4, as threads, and returns the members' errors.
std::vector<std::string> errors_of_members(const std::vector<int>& world_ranks, const Body& body,
                                           std::chrono::milliseconds timeout = 20s,
                                           std::size_t num_present = SIZE_MAX) {
  const auto store = std::make_shared<MemoryStore>();
  std::vector<std::string> errors(world_ranks.size());
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < std::min(world_ranks.size(), num_present); ++i) {
    threads.emplace_back([&, i] {
      try {
        const auto group = init_part_of_world({.name = "mine",
                                               .world_ranks = world_ranks,
                                               .rank = static_cast<int>(i),
                                               .world_size = 4,
                                               .store = std::make_shared<PrefixStore>("p", store),
                                               .group = {.timeout = timeout}});
        body(*group);
      } catch (const Error& error) {
        errors[i] = error.what();
      }
    });
  }
  threads.clear();
  return errors;
}

TEST(PartOfWorld, its_members_are_numbered_in_the_order_of_the_list) {
  const auto errors = errors_of_members({3, 1}, [](ProcessGroup& group) {
    EXPECT_EQ(group.world_size(), 2);
    EXPECT_EQ(group.world_ranks(), (std::vector<int>{3, 1}));
    std::array<int, 2> all{};
    const std::array<int, 1> mine = {group.rank()};
    group.all_gather(std::span(all), std::span(mine));
    EXPECT_EQ(all, (std::array<int, 2>{0, 1}));
  });
  EXPECT_THAT(errors, testing::Each(""));
}

TEST(PartOfWorld, a_member_that_does_not_come_is_named_by_its_rank_in_the_world) {
  try {
    init_part_of_world({.name = "mine",
                        .world_ranks = {3, 1},
                        .rank = 0,
                        .world_size = 4,
                        .store = std::make_shared<MemoryStore>(),
                        .group = {.timeout = 300ms}});
    FAIL() << "the group formed without its second member";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kTimeout);
    EXPECT_THAT(error.what(), Says("part.forming", 3, "mine", "3, 1"));
    EXPECT_THAT(error.what(), HasSubstr("rank 1, which did not arrive within 300 ms"));
    EXPECT_EQ(error.ranks(), std::vector<int>{1});
  }
}

TEST(PartOfWorld, members_that_cannot_be_are_refused) {
  const auto store = std::make_shared<MemoryStore>();
  const auto error_of = [&](const std::vector<int>& world_ranks) {
    try {
      init_part_of_world(
          {.name = "a", .world_ranks = world_ranks, .world_size = 2, .store = store});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(error_of({}), Says("part.no_ranks", "a"));
  EXPECT_THAT(error_of({0, 5}), Says("part.no_rank_of_world", "a", 5, 2));
}

// The check of a waiting rank ends its collective, and the other rank learns why.
TEST(WaitCheck, what_it_throws_ends_a_collective_on_every_rank) {
  const auto errors = errors_of_members({0, 1}, [](ProcessGroup& group) {
    if (group.rank() == 1) {
      std::this_thread::sleep_for(500ms);
      group.barrier();
      return;
    }
    int calls = 0;
    const WaitCheck check([&] {
      if (++calls == 2) throw Error(ErrorCode::kAborted, "rank 0: the user said stop");
    });
    group.barrier();
  });
  EXPECT_THAT(errors[0], HasSubstr("the user said stop"));
  EXPECT_THAT(errors[1], HasSubstr("the user said stop"));
}

TEST(WaitCheck, what_it_throws_ends_a_blocking_message_on_every_rank) {
  const auto errors = errors_of_members({0, 1}, [](ProcessGroup& group) {
    std::array<float, 3> values{};
    if (group.rank() == 1) {
      group.recv(std::span(values), 0);
      return;
    }
    int calls = 0;
    const WaitCheck check([&] {
      if (++calls == 2) throw Error(ErrorCode::kAborted, "rank 0: the user said stop");
    });
    group.recv(std::span(values), 1, 0, {.timeout = std::chrono::seconds(20)});
  });
  EXPECT_THAT(errors[0], HasSubstr("the user said stop"));
  EXPECT_THAT(errors[1], HasSubstr("the user said stop"));
}

TEST(WaitCheck, it_is_made_in_a_wait_for_a_message_and_for_a_work) {
  const auto errors = errors_of_members({0, 1}, [](ProcessGroup& group) {
    if (group.rank() == 1) return std::this_thread::sleep_for(1s);
    std::array<float, 3> values{};
    const auto work = group.irecv(std::span(values), 1);
    const WaitCheck check([] { throw Error(ErrorCode::kAborted, "rank 0: the user said stop"); });
    work->wait();
  });
  EXPECT_THAT(errors[0], HasSubstr("the user said stop"));
}

}  // namespace
}  // namespace paceline
