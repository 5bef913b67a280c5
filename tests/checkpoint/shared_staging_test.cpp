#include "paceline/checkpoint/shared_staging.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <optional>
#include <thread>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "paceline/checkpoint/checkpoint_writer.h"
#include "paceline/core/copy.h"

#include "tests/checkpoint/slow_file_system.h"
#include "tests/checkpoint/test_directory.h"
#include "tests/harness/process_ranks.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;
using harness::RanksOptions;
using harness::run_process_ranks;
using harness::run_ranks_ok;
using testing::SlowFileSystem;
using testing::TestDirectory;
using Bytes = std::vector<std::byte>;
using By = HeldTensor::By;

std::shared_ptr<ProcessGroup> borrowed(ProcessGroup& group) {
  return {&group, [](auto*) {}};
}

Bytes bytes_for(std::size_t count, int seed) {
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; ++i)
    bytes[i] = static_cast<std::byte>((i * 131 + i / 251 + static_cast<std::size_t>(seed)) & 0xff);
  return bytes;
}

// What one rank holds, with its memory.
struct Held {
  std::vector<Bytes> memory;
  std::vector<HeldTensor> tensors;

  HeldTensor& add(Bytes bytes, By by = By::kAll) {
    const auto count = static_cast<std::int64_t>(bytes.size());
    memory.push_back(std::move(bytes));
    const std::string name = "t" + std::to_string(tensors.size());
    tensors.push_back({{name, Dtype::kUint8, {count}, memory.back()}, by});
    return tensors.back();
  }
};

std::vector<Bytes> contents(const std::vector<NamedTensor>& tensors) {
  std::vector<Bytes> all;
  for (const auto& tensor : tensors) all.emplace_back(tensor.bytes.begin(), tensor.bytes.end());
  return all;
}

// Stages and compares with what rank 0 by itself would have copied.
void expect_staged(ProcessGroup& group, SharedStaging& staging,
                   const std::vector<HeldTensor>& tensors, const std::vector<Bytes>& expected) {
  ASSERT_TRUE(staging.stage(tensors));
  if (group.rank() != 0) return;
  const auto staged = staging.staged(tensors);
  EXPECT_EQ(contents(staged), expected);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(staged[i].name, tensors[i].tensor.name);
    EXPECT_EQ(staged[i].shape, tensors[i].tensor.shape);
  }
}

TEST(SharedStaging, replicas_of_any_size_are_those_of_rank_0) {
  const std::vector<std::size_t> sizes = {0, 1, 3, 63, 64, 65, 127, 128, 129, 0, 4096, 100003, 7};
  for (const int world : {2, 3, 4, 5, 8}) {
    run_ranks_ok(world, [&](ProcessGroup& group) {
      SharedStaging staging(borrowed(group));
      for (int save = 0; save < 3; ++save) {
        Held held;
        for (const std::size_t size : sizes) held.add(bytes_for(size, save));
        expect_staged(group, staging, held.tensors, held.memory);
      }
    });
  }
}

TEST(SharedStaging, more_ranks_than_tensors_and_than_lines) {
  run_ranks_ok(8, [](ProcessGroup& group) {
    SharedStaging staging(borrowed(group));
    for (const std::size_t size : {5, 0, 130}) {
      Held held;
      held.add(bytes_for(size, 1));
      expect_staged(group, staging, held.tensors, held.memory);
    }
    EXPECT_TRUE(staging.stage({}));
  });
}

TEST(SharedStaging, more_than_the_caches_hold) {
  const std::size_t most = std::min<std::size_t>(last_level_cache_bytes(), 64 << 20);
  run_ranks_ok(3, [&](ProcessGroup& group) {
    SharedStaging staging(borrowed(group));
    Held held;
    held.add(bytes_for(1001, 0));
    held.add(bytes_for(most + 77, 1));
    expect_staged(group, staging, held.tensors, held.memory);
  });
}

TEST(SharedStaging, values_that_may_differ_between_ranks_are_rank_0s) {
  run_ranks_ok(3, [](ProcessGroup& group) {
    SharedStaging staging(borrowed(group));
    Held held;
    held.add(bytes_for(500, 9));
    held.add(bytes_for(333, group.rank()), By::kRoot);
    held.add(bytes_for(500, 8));
    // The others need not even have it.
    auto& states = held.add(bytes_for(100, group.rank()), By::kRoot);
    if (group.rank() != 0) states.tensor.bytes = {};
    expect_staged(group, staging, held.tensors, held.memory);
  });
}

TEST(SharedStaging, owners_put_a_tensor_together) {
  const Bytes whole = bytes_for(1000, 4);
  const std::vector<std::size_t> begin_of = {0, 0, 333, 999, 1000};  // rank 0 has none of it
  run_ranks_ok(4, [&](ProcessGroup& group) {
    SharedStaging staging(borrowed(group));
    const auto rank = static_cast<std::size_t>(group.rank());
    Held held;
    held.add(bytes_for(70, 3));
    auto& part = held.add(whole, By::kOwners);
    part.first = begin_of[rank];
    part.tensor.bytes =
        part.tensor.bytes.subspan(begin_of[rank], begin_of[rank + 1] - begin_of[rank]);
    held.add(bytes_for(70, 5));
    expect_staged(group, staging, held.tensors, held.memory);
  });
}

TEST(SharedStaging, other_memory_orders_become_row_major) {
  // A column of rows: element (i, j) of 37 x 11 lies at j * 37 + i.
  std::vector<float> columns(37 * 11);
  std::vector<float> rows(columns.size());
  for (std::size_t i = 0; i < 37; ++i) {
    for (std::size_t j = 0; j < 11; ++j)
      columns[j * 37 + i] = rows[i * 11 + j] = static_cast<float>(i * 100 + j);
  }
  const auto bytes = std::as_bytes(std::span(columns));
  const auto expected = std::as_bytes(std::span(rows));
  for (const int world : {2, 3, 5}) {
    run_ranks_ok(world, [&](ProcessGroup& group) {
      SharedStaging staging(borrowed(group));
      const std::size_t part = columns.size() / static_cast<std::size_t>(world) * 4;
      const std::size_t first = part * static_cast<std::size_t>(group.rank());
      const bool is_last = group.rank() == world - 1;
      std::vector<HeldTensor> tensors = {
          {{"all", Dtype::kFloat32, {37, 11}, bytes}, By::kAll, 0, {1, 37}},
          {{"root", Dtype::kFloat32, {37, 11}, bytes}, By::kRoot, 0, {1, 37}},
          {{"owners",
            Dtype::kFloat32,
            {37, 11},
            is_last ? bytes.subspan(first) : bytes.subspan(first, part)},
           By::kOwners,
           first,
           {1, 37}}};
      const Bytes row_major(expected.begin(), expected.end());
      expect_staged(group, staging, tensors, {row_major, row_major, row_major});
    });
  }
}

TEST(SharedStaging, every_rank_copies_its_share) {
  run_ranks_ok(4, [](ProcessGroup& group) {
    SharedStaging staging(borrowed(group));
    Held held;
    held.add(bytes_for(64 * 400, 0));
    const Bytes same = held.memory[0];
    // A line in each share that none is compared by: who copied it shows.
    const auto rank = static_cast<std::byte>(group.rank() + 1);
    for (const std::size_t line : {50, 150, 250, 350}) held.memory[0][64 * line] = rank;
    held.tensors[0].tensor.bytes = held.memory[0];
    ASSERT_TRUE(staging.stage(held.tensors));
    if (group.rank() != 0) return;
    const auto staged = staging.staged(held.tensors);
    for (const std::size_t owner : {0, 1, 2, 3})
      EXPECT_EQ(staged[0].bytes[64 * (50 + 100 * owner)], static_cast<std::byte>(owner + 1));
  });
}

TEST(SharedStaging, replicas_that_differ_are_left_to_rank_0_until_they_are_the_same_again) {
  run_ranks_ok(3, [](ProcessGroup& group) {
    SharedStaging staging(borrowed(group));
    for (const bool differs : {false, true, false}) {
      Held held;
      held.add(bytes_for(1000, 0));
      held.add(bytes_for(1000, differs && group.rank() == 2 ? 1 : 0));
      EXPECT_EQ(staging.stage(held.tensors), !differs);
    }
    Held other;
    other.add(bytes_for(group.rank() == 1 ? 12 : 10, 0));
    EXPECT_FALSE(staging.stage(other.tensors));
  });
}

TEST(SharedStaging, ranks_that_share_no_memory_leave_it_to_rank_0) {
  const RanksOptions options{.transport = TransportKind::kTcp};
  run_ranks_ok(
      3,
      [](ProcessGroup& group) {
        SharedStaging staging(borrowed(group));
        Held held;
        held.add(bytes_for(1000, 0));
        EXPECT_FALSE(staging.stage(held.tensors));
      },
      options);
}

TEST(SharedStaging, a_rank_alone_copies_alone) {
  run_ranks_ok(1, [](ProcessGroup& group) {
    SharedStaging staging(borrowed(group));
    Held held;
    held.add(bytes_for(1000, 0));
    EXPECT_FALSE(staging.stage(held.tensors));
  });
}

TEST(SharedStaging, of_several_hosts_that_of_rank_0_shares) {
  for (const std::vector<int>& host_of :
       {std::vector{0, 0, 1, 1}, std::vector{0, 1, 0, 1, 0}, std::vector{0, 1, 1}}) {
    RanksOptions options;
    options.adjust = [&](int rank, GroupOptions& group) {
      group.link.host = "h" + std::to_string(host_of[static_cast<std::size_t>(rank)]);
    };
    const bool is_shared = std::ranges::count(host_of, 0) > 1;
    run_ranks_ok(
        static_cast<int>(host_of.size()),
        [&](ProcessGroup& group) {
          SharedStaging staging(borrowed(group));
          for (const std::size_t size : {1000, 2000}) {
            Held held;
            // Ranks of other hosts have no say.
            const int host = host_of[static_cast<std::size_t>(group.rank())];
            held.add(bytes_for(size, host));
            if (is_shared) {
              expect_staged(group, staging, held.tensors, held.memory);
            } else {
              EXPECT_FALSE(staging.stage(held.tensors));
            }
          }
          EXPECT_TRUE(staging.includes(std::vector{0}));
          EXPECT_EQ(staging.includes(std::vector{0, 1}), host_of[1] == 0);
        },
        options);
  }
}

TEST(SharedStaging, a_rank_that_gets_no_memory_leaves_it_to_rank_0) {
  const auto results = run_process_ranks(2, [](ProcessGroup& group) {
    SharedStaging staging(borrowed(group));
    const rlimit limit{64 << 10, 64 << 10};
    if (group.rank() == 1) setrlimit(RLIMIT_FSIZE, &limit);
    Held held;
    held.add(bytes_for(1 << 20, 0));
    EXPECT_FALSE(staging.stage(held.tensors));
    EXPECT_FALSE(staging.stage(held.tensors));
    group.barrier();
    return std::string();
  });
  for (const auto& result : results) EXPECT_EQ(result.exit_code, 0) << result.report;
}

TEST(SharedStaging, a_rank_that_gives_too_much_is_told_so) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    SharedStaging staging(borrowed(group));
    Held held;
    auto& part = held.add(bytes_for(100, 0), By::kOwners);
    part.first = 1;
    try {
      staging.stage(held.tensors);
      ADD_FAILURE() << "was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalid);
      EXPECT_NE(std::string(error.what()).find("\"t0\""), std::string::npos) << error.what();
    }
  });
}

// The next share may not be written over what is still being written to the disk.
TEST(SharedStaging, waits_for_the_writer_of_rank_0) {
  TestDirectory folder;
  SlowFileSystem files;
  CheckpointDirectory directory(folder.path(), {.keep = 10}, files);
  files.hold();
  std::atomic<bool> is_staged_again{false};
  run_ranks_ok(3, [&](ProcessGroup& group) {
    SharedStaging staging(borrowed(group));
    std::optional<CheckpointWriter> writer;
    if (group.rank() == 0) writer.emplace(directory);
    std::jthread releaser;
    for (int step = 1; step <= 2; ++step) {
      if (step == 2 && group.rank() == 0) {
        releaser = std::jthread([&] {
          std::this_thread::sleep_for(100ms);
          EXPECT_FALSE(is_staged_again);
          files.let_go();
        });
      }
      if (writer) writer->take_turn(step);
      Held held;
      held.add(bytes_for(200'000, step));
      ASSERT_TRUE(staging.stage(held.tensors));
      if (step == 2) is_staged_again = true;
      if (writer) writer->save_in_place(step, {.tensors = staging.staged(held.tensors)});
    }
    if (writer) {
      EXPECT_FALSE(writer->finish());
    }
  });
  for (int step = 1; step <= 2; ++step) {
    const auto loaded = directory.load(step);
    EXPECT_EQ(contents(loaded.snapshot.tensors), (std::vector<Bytes>{bytes_for(200'000, step)}));
  }
}

TEST(SharedStaging, a_rank_that_dies_in_the_middle_of_its_share_leaves_the_older_checkpoint) {
  constexpr std::size_t kBytes = 4 << 20;
  TestDirectory folder;
  const auto results = run_process_ranks(3, [&](ProcessGroup& group) {
    SharedStaging staging(borrowed(group));
    std::optional<CheckpointDirectory> directory;
    std::optional<CheckpointWriter> writer;
    if (group.rank() == 0) writer.emplace(directory.emplace(folder.path()));
    auto* const memory = static_cast<std::byte*>(
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    for (int step = 1; step <= 2; ++step) {
      std::memset(memory, step, kBytes);
      // A page of rank 2's share that cannot be read.
      if (step == 2 && group.rank() == 2) mprotect(memory + kBytes / 6 * 5 / 4096 * 4096, 4096, 0);
      const std::vector<HeldTensor> tensors = {
          {{"a", Dtype::kUint8, {kBytes}, {memory, kBytes}}, By::kAll}};
      if (writer) writer->take_turn(step);
      EXPECT_TRUE(staging.stage(tensors));
      if (writer) writer->save_in_place(step, {.tensors = staging.staged(tensors)});
    }
    return std::string("went on");
  });
  EXPECT_NE(results[2].exit_code, 0);
  for (const int survivor : {0, 1}) {
    const auto& result = results[static_cast<std::size_t>(survivor)];
    EXPECT_TRUE(result.threw) << result.report;
    EXPECT_TRUE(result.code == ErrorCode::kPeerLost || result.code == ErrorCode::kAborted)
        << result.report;
  }
  const auto newest = CheckpointDirectory(folder.path(), {.read_only = true}).load_newest();
  ASSERT_TRUE(newest);
  EXPECT_EQ(newest->step, 1);
  EXPECT_TRUE(newest->refused.empty());
  EXPECT_EQ(contents(newest->snapshot.tensors), (std::vector<Bytes>{Bytes(kBytes, std::byte{1})}));
}

}  // namespace
}  // namespace paceline
