#include "paceline/engine/collectives/memory/one_copy.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <fstream>
#include <new>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include "tests/harness/expect_error.h"
#include "tests/harness/memory_pages.h"
#include "tests/harness/process_ranks.h"
#include "tests/harness/says.h"
#include "tests/harness/small_cgroup.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using harness::proportional_bytes;
using harness::run_process_ranks;
using harness::run_ranks_ok;
using harness::Says;

std::span<std::uint32_t> words(std::byte* memory, std::size_t count) {
  return {reinterpret_cast<std::uint32_t*>(memory), count};
}

constexpr std::size_t kBytes = 24 << 20;

// A sanitizer's signal handler would end a rank differently. It is removed before the first OneCopy
// of the program installs its handler, once for all its children.
[[maybe_unused]] const auto kSanitizersHandler = std::signal(SIGSEGV, SIG_DFL);

TEST(OneCopy, what_one_rank_writes_all_read) {
  constexpr std::size_t kCount = 100'000;
  const auto body = [&](ProcessGroup& group) {
    const OneCopy copy(group, kCount * 4, {});
    const auto written = words(copy.data(), kCount);
    const auto read = words(copy.read_only(), kCount);
    EXPECT_TRUE(std::ranges::all_of(read, [](auto word) { return word == 0; }));
    group.barrier();
    const auto world = static_cast<std::size_t>(group.world_size());
    for (std::size_t i = static_cast<std::size_t>(group.rank()); i < kCount; i += world)
      written[i] = static_cast<std::uint32_t>(i * 7);
    group.barrier();
    for (std::size_t i = 0; i < kCount; ++i) ASSERT_EQ(read[i], i * 7);
  };
  for (const int world : {1, 2, 3, 8}) run_ranks_ok(world, body);
  for (const int world : {2, 4}) {
    const auto results = run_process_ranks(world, [&](ProcessGroup& group) {
      body(group);
      return std::string();
    });
    for (const auto& result : results) EXPECT_EQ(result.exit_code, 0) << result.report;
  }
}

TEST(OneCopy, the_machine_has_its_pages_once) {
  for (const int world : {2, 4}) {
    const auto results = run_process_ranks(world, [&](ProcessGroup& group) {
      const OneCopy copy(group, kBytes, {});
      // Every rank writes its part and then reads everything, in both views.
      const std::size_t part = kBytes / static_cast<std::size_t>(group.world_size());
      std::fill_n(copy.data() + part * static_cast<std::size_t>(group.rank()), part, std::byte{1});
      group.barrier();
      const auto sum = [](std::byte* at) {
        const auto all = words(at, kBytes / 4);
        return std::accumulate(all.begin(), all.end(), std::uint32_t{0});
      };
      EXPECT_EQ(sum(copy.data()), sum(copy.read_only()));
      group.barrier();
      const auto mine = static_cast<std::int64_t>(
          proportional_bytes(copy.data(), copy.data() + kBytes) +
          proportional_bytes(copy.read_only(), copy.read_only() + kBytes));
      return std::to_string(all_reduce_value(group, mine, ReduceOp::kSum));
    });
    for (const auto& result : results) {
      ASSERT_EQ(result.exit_code, 0) << result.report;
      const double all = std::stod(result.report);
      EXPECT_GT(all, 0.98 * kBytes) << world;
      EXPECT_LT(all, 1.05 * kBytes) << world;
    }
  }
}

TEST(OneCopy, a_stray_write_ends_the_rank_with_the_name_of_the_place) {
  // The ranks inherit the handler of a program that has made a OneCopy.
  run_ranks_ok(2, [](ProcessGroup& group) { const OneCopy copy(group, 8192, {}); });
  for (const std::size_t offset : {std::size_t{0}, std::size_t{4099}, std::size_t{8000}}) {
    testing::internal::CaptureStderr();
    const auto results = run_process_ranks(2, [&](ProcessGroup& group) {
      const OneCopy copy(group, 8192,
                         {{0, "parameter a.weight"}, {4096, "parameter b.bias"}, {8000, "c"}});
      if (group.rank() == 1) copy.read_only()[offset] = std::byte{1};
      group.barrier();
      return std::string();
    });
    const std::string printed = testing::internal::GetCapturedStderr();
    EXPECT_EQ(results[1].signal, SIGSEGV);
    const std::string name = offset == 0      ? "parameter a.weight"
                             : offset == 4099 ? "parameter b.bias"
                                              : "c";
    EXPECT_THAT(printed, Says("one_copy.written_outside", "rank 1", name));
  }
}

TEST(OneCopy, a_fault_elsewhere_is_as_it_always_was) {
  testing::internal::CaptureStderr();
  const auto results = run_process_ranks(2, [&](ProcessGroup& group) {
    const OneCopy copy(group, 8192, {{0, "parameter a"}});
    if (group.rank() == 1) raise(SIGSEGV);
    if (group.rank() == 0) {
      group.barrier();
    }
    return std::string();
  });
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::Not(Says("one_copy.written_outside")));
  EXPECT_EQ(results[1].signal, SIGSEGV);
  EXPECT_EQ(results[0].code, ErrorCode::kPeerLost);
}

TEST(OneCopy, writers_may_overlap) {
  const auto results = run_process_ranks(2, [&](ProcessGroup& group) {
    const OneCopy copy(group, 8192, {});
    if (group.rank() == 1) {
      const OneCopy::Writing outer(copy);
      { const OneCopy::Writing inner(copy); }
      copy.read_only()[5] = std::byte{9};  // the end of `inner` leaves the memory writable
    }
    group.barrier();
    EXPECT_EQ(copy.read_only()[5], std::byte{9});
    return std::string();
  });
  for (const auto& result : results) EXPECT_EQ(result.exit_code, 0) << result.report;
}

// Sanitizers map far more memory than the limit would allow.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Bytes of address space that this process has mapped.
std::size_t virtual_bytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t pages = 0;
  file >> pages;
  return pages * harness::kPageBytes;
}

// The memory of an object whose constructor threw is used for another object afterwards.
TEST(OneCopy, a_copy_whose_making_fails_is_forgotten) {
  const auto results = run_process_ranks(2, [&](ProcessGroup& group) {
    alignas(OneCopy) std::array<std::byte, sizeof(OneCopy)> memory{};
    std::vector<NamedRange> names(1);
    names[0].name.assign(std::size_t{64} << 20U, 'n');
    rlimit before{};
    EXPECT_EQ(getrlimit(RLIMIT_AS, &before), 0);
    const rlimit tight{virtual_bytes() + (std::size_t{32} << 20U), before.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_AS, &tight), 0);
    EXPECT_THROW(new (memory.data()) OneCopy(group, 8192, std::move(names)), std::bad_alloc);
    EXPECT_EQ(setrlimit(RLIMIT_AS, &before), 0);
    memory.fill(std::byte{0x11});
    EXPECT_FALSE(OneCopy::holds(reinterpret_cast<const void*>(0x1111111111111112)));
    const OneCopy next(group, 8192, {});
    EXPECT_TRUE(OneCopy::holds(next.read_only() + 8191));
    EXPECT_FALSE(OneCopy::holds(next.read_only() + 8192));
    return std::string();
  });
  for (const auto& result : results) EXPECT_EQ(result.exit_code, 0) << result.report;
}
#endif

TEST(OneCopy, who_says_so_may_write_for_a_while) {
  const auto results = run_process_ranks(2, [&](ProcessGroup& group) {
    const OneCopy copy(group, 8192, {});
    if (group.rank() == 1) {
      const OneCopy::Writing writing(copy);
      copy.read_only()[5] = std::byte{9};
    }
    group.barrier();
    EXPECT_EQ(copy.data()[5], std::byte{9});
    EXPECT_EQ(copy.read_only()[5], std::byte{9});
    return std::string();
  });
  for (const auto& result : results) EXPECT_EQ(result.exit_code, 0) << result.report;
}

TEST(OneCopy, is_refused_where_ranks_share_no_memory) {
  run_ranks_ok(2,
               [](ProcessGroup& group) {
                 expect_error(ErrorCode::kUnsupported, {"share no memory", "tcp", "rank"},
                              [&] { const OneCopy copy(group, 100, {}); });
                 group.barrier();
               },
               {.transport = TransportKind::kTcp});
}

TEST(OneCopy, more_than_a_small_cgroup_has_is_refused_before_it_is_used) {
  const harness::SmallCgroup small(96 << 20);
  if (!small.is_made()) GTEST_SKIP() << "no cgroup with a limit on memory can be made here";
  const auto results = run_process_ranks(2, [&](ProcessGroup& group) {
    EXPECT_TRUE(small.enter());
    group.barrier();
    expect_error(ErrorCode::kSystem,
                 {"one copy", std::to_string(256 << 20) + " bytes", "left", "below the limit of"},
                 [&] { const OneCopy copy(group, 256 << 20, {}); });
    const OneCopy fits(group, 1 << 20, {});
    group.barrier();
    return std::string();
  });
  for (const auto& result : results) EXPECT_EQ(result.exit_code, 0) << result.report;
}

TEST(OneCopy, more_than_the_machine_has_is_refused_on_every_rank) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    expect_error(ErrorCode::kSystem, {"one copy", "bytes", "left"},
                 [&] { const OneCopy copy(group, std::size_t{1} << 46, {}); });
    group.barrier();
  });
}

}  // namespace
}  // namespace paceline
