// The code that the backends for several libraries share, without any of the libraries.

#include <algorithm>
#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/collectives/backends/library.h"
#include "paceline/engine/core/dtype_traits.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/store/memory_store.h"
#include "paceline/engine/transport/formation/connect.h"

#include "tests/engine/collectives/sample_values.h"
#include "tests/harness/says.h"

namespace paceline {
namespace {

using harness::Says;

using namespace std::chrono_literals;

constexpr std::size_t kCount = 65;  // elements of a block

Collective call_of(Op op, const std::vector<std::byte>& input, std::vector<std::byte>& output,
                   Dtype dtype, ReduceOp reduce_op, int root) {
  Collective call;
  call.op = op;
  call.reduce_op = reduce_op;
  call.dtype = dtype;
  call.root = root;
  call.count = kCount;
  call.input = input.data();
  call.output = output.data();
  return call;
}

// Simulates a library that only moves data: the contributions of `world` ranks, as rank `rank`
// receives them.
void move_to(int rank, int world, const Collective& moved) {
  for (int giver = 0; giver < world; ++giver) {
    const auto blocks = moved.op == Op::kAllToAll ? static_cast<std::size_t>(world) : 1;
    const auto given = values_of(moved.dtype, giver, kCount * blocks);
    const auto* from =
        moved.op == Op::kAllToAll ? block_of(given.data(), moved, rank) : given.data();
    std::copy_n(from, bytes_of(moved), block_of(moved.output, moved, giver));
  }
}

TEST(ReduceContributions, gives_every_rank_what_the_engines_kernel_gives) {
  for (const int world : {1, 2, 3, 5}) {
    for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBfloat16, Dtype::kInt16, Dtype::kBool}) {
      for (int rank = 0; rank < world; ++rank) {
        SCOPED_TRACE(testing::Message() << world << " " << name_of(dtype) << " " << rank);
        const std::size_t ranks = static_cast<std::size_t>(world);
        const auto wanted = reduced(dtype, ReduceOp::kMax, world, kCount * ranks);
        const auto input = values_of(dtype, rank, kCount * ranks);
        const auto run = [&](Op op, std::vector<std::byte>& output) {
          std::vector<std::byte> contributions;
          std::vector<Op> asked;
          reduce_contributions(call_of(op, input, output, dtype, ReduceOp::kMax, world - 1), rank,
                               world, contributions, [&](const Collective& moved) {
                                 asked.push_back(moved.op);
                                 ASSERT_EQ(moved.output, contributions.data());
                                 ASSERT_EQ(contributions.size(), ranks * kCount * size_of(dtype));
                                 move_to(rank, world, moved);
                               });
          EXPECT_EQ(asked, std::vector{op == Op::kReduceScatter ? Op::kAllToAll : Op::kAllGather});
        };
        const std::size_t bytes = kCount * size_of(dtype);
        const std::vector<std::byte> untouched(bytes, std::byte{7});
        const std::vector<std::byte> first(wanted.begin(),
                                           wanted.begin() + static_cast<std::ptrdiff_t>(bytes));
        auto output = untouched;
        run(Op::kAllReduce, output);
        EXPECT_EQ(output, first);
        output = untouched;
        run(Op::kReduce, output);
        EXPECT_EQ(output, rank == world - 1 ? first : untouched);
        output = untouched;
        run(Op::kReduceScatter, output);
        const auto mine = wanted.begin() + static_cast<std::ptrdiff_t>(bytes) * rank;
        EXPECT_TRUE(std::equal(output.begin(), output.end(), mine));
      }
    }
  }
}

TEST(ReduceContributions, leaves_memory_that_the_library_may_still_write_to_with_its_caller) {
  std::vector<std::byte> input(kCount * 4), output(kCount * 4, std::byte{7}), contributions;
  EXPECT_THROW(
      reduce_contributions(
          call_of(Op::kAllReduce, input, output, Dtype::kFloat32, ReduceOp::kMin, 0), 0, 2,
          contributions, [](const Collective&) { throw Error(ErrorCode::kTimeout, "late"); }),
      Error);
  EXPECT_EQ(contributions.size(), 2 * input.size());
  EXPECT_EQ(output, std::vector(output.size(), std::byte{7}));
}

TEST(FinishMean, divides_only_where_there_is_a_sum_of_a_mean) {
  const auto after = [](Op op, ReduceOp reduce_op, int rank) {
    std::vector<std::byte> data(kCount * sizeof(float));
    const std::vector<float> sums(kCount, 6.0f);
    std::memcpy(data.data(), sums.data(), data.size());
    finish_mean(call_of(op, data, data, Dtype::kFloat32, reduce_op, 1), rank, 4);
    std::vector<float> result(kCount);
    std::memcpy(result.data(), data.data(), data.size());
    EXPECT_EQ(result, std::vector<float>(kCount, result[0]));
    return result[0];
  };
  EXPECT_EQ(after(Op::kAllReduce, ReduceOp::kMean, 0), 1.5f);
  EXPECT_EQ(after(Op::kReduceScatter, ReduceOp::kMean, 3), 1.5f);
  EXPECT_EQ(after(Op::kReduce, ReduceOp::kMean, 1), 1.5f);
  EXPECT_EQ(after(Op::kReduce, ReduceOp::kMean, 0), 6.0f) << "no rank but the root has a result";
  EXPECT_EQ(after(Op::kAllReduce, ReduceOp::kSum, 0), 6.0f);
  EXPECT_EQ(after(Op::kBroadcast, ReduceOp::kMean, 1), 6.0f);
}

TEST(LibraryCall, knows_where_a_block_begins) {
  std::vector<std::byte> data(100);
  Collective call;
  call.dtype = Dtype::kInt64;
  call.count = 3;
  EXPECT_EQ(bytes_of(call), 24u);
  EXPECT_EQ(block_of(data.data(), call, 2), data.data() + 48);
  EXPECT_EQ(block_of<std::byte>(nullptr, call, 2), nullptr);
}

TEST(LibraryCall, never_asks_for_no_limit) {
  EXPECT_EQ(timeout_of(Deadline::after(0ns)), 1ms);
  EXPECT_GT(timeout_of(Deadline::after(10s)), 5s);
  EXPECT_GT(timeout_of(Deadline::never()), 24h);
}

TEST(LibraryCall, tells_what_happened_by_the_text) {
  EXPECT_EQ(code_of_text("Read error [127.0.0.1]:4711: Connection reset by peer"),
            ErrorCode::kPeerLost);
  EXPECT_EQ(code_of_text("writev: Broken pipe"), ErrorCode::kPeerLost);
  EXPECT_EQ(code_of_text("Connection closed by peer [10.0.0.1]:9"), ErrorCode::kPeerLost);
  EXPECT_EQ(code_of_text("Application timeout caused pair closure"), ErrorCode::kTimeout);
  EXPECT_EQ(code_of_text("Timed out waiting 100ms for recv operation"), ErrorCode::kTimeout);
  EXPECT_EQ(code_of_text("no device"), ErrorCode::kSystem);
}

// Shares `id` as rank `rank` of two through `store`.
void share(const std::shared_ptr<Store>& store, int rank, std::string& id) {
  ConnectOptions alone;
  std::string published;
  alone.publish = [&](const std::string& value) { published = value; };
  alone.fetch = [&](const auto& ranks, auto) { return std::vector(ranks.size(), published); };
  const auto mesh = connect_mesh(alone, Secret::generate());
  share_id({.group = "world",
            .rank = rank,
            .world_ranks = {0, 1},
            .environment = {},
            .address = "",
            .store = store,
            .mesh = *mesh,
            .deadline = Deadline::after(200ms)},
           id, "Somelib");
}

TEST(ShareId, gives_rank_0s_bytes_to_the_others) {
  const auto store = std::make_shared<MemoryStore>();
  std::string given("\0id\xff", 4), got(4, '-');
  share(store, 0, given);
  share(store, 1, got);
  EXPECT_EQ(got, given);
  EXPECT_EQ(given, std::string("\0id\xff", 4));
}

TEST(ShareId, refuses_an_id_of_another_version) {
  const auto store = std::make_shared<MemoryStore>();
  std::string given(128, 'a'), got(256, '-');
  share(store, 0, given);
  try {
    share(store, 1, got);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
    EXPECT_THAT(error.what(), Says("library.id_of_another_size", "Somelib", 128, 256));
  }
}

TEST(ShareId, does_not_wait_for_ever_for_rank_0) {
  std::string got(4, '-');
  try {
    share(std::make_shared<MemoryStore>(), 1, got);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kTimeout);
    EXPECT_THAT(error.what(),
                testing::AllOf(Says("library.rank_missing"), testing::HasSubstr("Somelib")));
  }
}

}  // namespace
}  // namespace paceline
