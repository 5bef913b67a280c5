#include "paceline/engine/collectives/memory/symmetric_arena.h"

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "tests/harness/process_ranks.h"
#include "tests/harness/random_seed.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

constexpr std::size_t kMega = 1 << 20;

std::size_t present_pages(const std::byte* begin, std::size_t bytes) {
  std::vector<unsigned char> present(bytes / SymmetricArena::kAlignment);
  EXPECT_EQ(mincore(const_cast<std::byte*>(begin), bytes, present.data()), 0);
  return static_cast<std::size_t>(
      std::count_if(present.begin(), present.end(), [](unsigned char c) { return (c & 1) != 0; }));
}

// If memory does not suffice, touching the pages later would kill the process.
TEST(SymmetricArena, a_block_has_its_pages_when_it_is_given_out) {
  const auto body = [](ProcessGroup& group) {
    SymmetricArena arena(group, 16 * kMega);
    std::byte* const first = arena.allocate(3 * kMega);
    EXPECT_EQ(present_pages(first, 3 * kMega), 3 * kMega / SymmetricArena::kAlignment);
    // The pages after the block are only added later, except the rest of a huge page.
    EXPECT_EQ(present_pages(first + 6 * kMega, kMega), 0u);
    arena.deallocate(first);
    std::byte* const second = arena.allocate(5 * kMega);
    EXPECT_EQ(present_pages(second, 5 * kMega), 5 * kMega / SymmetricArena::kAlignment);
    arena.deallocate(second);
    arena.release_unused();
    std::byte* const third = arena.allocate(kMega);
    EXPECT_EQ(present_pages(third, kMega), kMega / SymmetricArena::kAlignment);
    group.barrier();
    return std::string(testing::Test::HasFailure() ? "wrong" : "right");
  };
  harness::run_ranks_ok(2, body);
  for (const auto& result : harness::run_process_ranks(2, body)) EXPECT_EQ(result.report, "right");
}

TEST(SymmetricArena, blocks_are_aligned_and_apart_and_whole_again_when_all_are_free) {
  harness::run_ranks_ok(2, [](ProcessGroup& group) {
    SymmetricArena arena(group, 4 * kMega);
    std::mt19937 random(harness::random_seed() + static_cast<unsigned>(group.rank()));
    std::map<std::byte*, std::size_t> held;  // the test's own record of the blocks in use
    for (int round = 0; round < 2000; ++round) {
      if (random() % 2 == 0) {
        const std::size_t bytes = 1 + random() % (300 << 10);
        std::byte* const block = arena.allocate(bytes);
        if (block == nullptr) continue;
        ASSERT_EQ(reinterpret_cast<std::uintptr_t>(block) % SymmetricArena::kAlignment, 0u);
        ASSERT_TRUE(arena.contains(block) && arena.contains(block + bytes - 1));
        const auto next = held.lower_bound(block);
        if (next != held.end()) {
          ASSERT_LE(block + bytes, next->first);
        }
        if (next != held.begin()) {
          const auto before = std::prev(next);
          ASSERT_LE(before->first + before->second, block);
        }
        held.emplace(block, bytes);
      } else if (!held.empty()) {
        const auto any = std::next(held.begin(), static_cast<long>(random() % held.size()));
        arena.deallocate(any->first);
        held.erase(any);
      }
      ASSERT_EQ(arena.is_empty(), held.empty());
    }
    for (const auto& [block, bytes] : held) arena.deallocate(block);
    EXPECT_NE(arena.allocate(4 * kMega), nullptr);
    EXPECT_EQ(arena.allocate(1), nullptr);
    group.barrier();
  });
}

TEST(SymmetricArena, what_is_free_can_be_given_back_to_the_system_and_used_again) {
  const auto results = harness::run_process_ranks(2, [](ProcessGroup& group) {
    SymmetricArena arena(group, 4 * kMega);
    std::byte* const kept = arena.allocate(kMega);
    std::byte* const freed = arena.allocate(kMega);
    std::fill_n(kept, kMega, std::byte{7});
    std::fill_n(freed, kMega, std::byte{7});
    arena.deallocate(freed);
    arena.release_unused();
    std::byte* const again = arena.allocate(kMega);
    const bool is_fresh =
        again == freed && again[0] == std::byte{0} && again[kMega - 1] == std::byte{0};
    std::fill_n(again, kMega, std::byte{9});
    const bool is_kept = kept[0] == std::byte{7} && kept[kMega - 1] == std::byte{7};
    group.barrier();
    return std::string(is_fresh && is_kept && again[5] == std::byte{9} ? "right" : "wrong");
  });
  for (const auto& result : results) EXPECT_EQ(result.report, "right");
}

TEST(SymmetricArena, a_request_that_does_not_fit_is_null) {
  harness::run_ranks_ok(2, [](ProcessGroup& group) {
    SymmetricArena arena(group, kMega);
    EXPECT_EQ(arena.allocate(kMega + 1), nullptr);
    EXPECT_EQ(arena.allocate(std::size_t(-1)), nullptr);
    EXPECT_NE(arena.allocate(0), nullptr);
    EXPECT_EQ(arena.allocate(kMega), nullptr);
  });
}

// Far more than the machine has: only touched pages take memory. The thread sanitizer leaves less
// address space.
#ifdef __SANITIZE_THREAD__
constexpr std::size_t kMoreThanTheMachineHas = std::size_t(1) << 36;
#else
constexpr std::size_t kMoreThanTheMachineHas = std::size_t(1) << 40;
#endif

TEST(SymmetricArena, large_blocks_at_different_places_are_reduced_in_place) {
  const auto results = harness::run_process_ranks(3, [](ProcessGroup& group) {
    SymmetricArena arena(group, kMoreThanTheMachineHas);
    // Every rank allocates at a different offset.
    for (int i = 0; i <= group.rank(); ++i) arena.allocate(kMega);
    auto* const data = reinterpret_cast<float*>(arena.allocate(2 * kMega));
    const std::span values(data, 2 * kMega / sizeof(float));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(i % 1000) + static_cast<float>(group.rank());
    if (!group.is_symmetric(values)) return std::string("not symmetric");
    group.all_reduce(values);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i] != 3 * static_cast<float>(i % 1000) + 3) return "wrong at " + std::to_string(i);
    }
    return std::string("right");
  });
  for (const auto& result : results) EXPECT_EQ(result.report, "right");
}

// Each allocation has a number that all ranks know; numbers of freed ones are not used again.
TEST(SymmetricMemory, blocks_that_come_and_go_leave_nothing_behind) {
  harness::run_ranks_ok(2, [](ProcessGroup& group) {
    constexpr std::size_t kCount = 20'000;
    const auto kept = group.allocate_symmetric(kCount * sizeof(float));
    for (int i = 0; i < 50; ++i) {
      const auto brief = group.allocate_symmetric(kCount * sizeof(float));
      for (const auto& values : {kept.as<float>(), brief.as<float>()}) {
        std::fill(values.begin(), values.end(), static_cast<float>(i));
        ASSERT_TRUE(group.is_symmetric(values));
        group.all_reduce(values);
        ASSERT_EQ(values.front(), static_cast<float>(2 * i));
        ASSERT_EQ(values[kCount - 1], static_cast<float>(2 * i));
      }
    }
  });
}

TEST(SymmetricArena, memory_of_a_failed_group_is_not_used_again) {
  harness::run_ranks_ok(2, [](ProcessGroup& group) {
    SymmetricArena arena(group, kMega);
    std::byte* const block = arena.allocate(kMega);
    group.barrier();
    group.abort("the test says so");
    EXPECT_EQ(arena.allocate(1), nullptr);
    arena.deallocate(block);
    EXPECT_TRUE(arena.is_empty());
    EXPECT_EQ(arena.allocate(1), nullptr);
  });
}

// Only rank 0 aborts the group; rank 1 only learns of it from rank 0's message.
TEST(SymmetricArena, memory_of_a_group_that_failed_elsewhere_is_not_used_again) {
  harness::run_ranks_ok(2, [](ProcessGroup& group) {
    SymmetricArena arena(group, kMega);
    const auto buffer = group.allocate_symmetric(4096);
    EXPECT_TRUE(buffer.is_live());
    group.barrier();
    if (group.rank() == 0) {
      group.abort("the test says so");
    } else {
      EXPECT_THROW(group.recv(std::span<float>(), 0), Error);
    }
    EXPECT_FALSE(buffer.is_live());
    EXPECT_EQ(arena.allocate(1), nullptr);
  });
}

TEST(SymmetricArena, ordinary_memory_is_not_symmetric) {
  harness::run_ranks_ok(2, [](ProcessGroup& group) {
    std::vector<float> ordinary(1000);
    EXPECT_FALSE(group.is_symmetric(std::span(ordinary)));
    const auto buffer = group.allocate_symmetric(8192);
    EXPECT_TRUE(group.is_symmetric(buffer.as<float>()));
    // One part of this range lies beyond the buffer.
    EXPECT_FALSE(group.is_symmetric(std::span(buffer.as<float>().data(), 8192)));
    group.barrier();
  });
}

}  // namespace
}  // namespace paceline
