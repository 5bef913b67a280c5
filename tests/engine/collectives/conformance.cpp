#include "tests/engine/collectives/conformance.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/collectives/group/engine_group.h"
#include "paceline/engine/collectives/op_traits.h"
#include "paceline/engine/core/dtype_traits.h"

#include "tests/engine/collectives/sample_values.h"
#include "tests/harness/says.h"

namespace paceline::conformance {
namespace {

using namespace std::chrono_literals;
using harness::Says;
using testing::HasSubstr;

// Below, at and above each boundary of the engine's executors (one-shot, small, staging area,
// chunk) and of Gloo's segments.
const std::vector<std::size_t> kCounts = {0,    1,    2,    63,   64,    65,    1000,  2047,   2048,
                                          2049, 4096, 4097, 5000, 65535, 65536, 65537, 200'001};
const std::vector<std::size_t> kBlockCounts = {0, 1, 64, 1000, 9000, 70'001};
constexpr std::size_t kOddCount = 1003;

std::size_t ranks_of(const ProcessGroup& group) {
  return static_cast<std::size_t>(group.world_size());
}

std::vector<int> all_ranks(const ProcessGroup& group) {
  std::vector<int> ranks(ranks_of(group));
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) ranks[rank] = static_cast<int>(rank);
  return ranks;
}

struct Reduction {
  Dtype dtype;
  ReduceOp op;
};

std::vector<Reduction> all_reductions() {
  std::vector<Reduction> all;
  for (const Dtype dtype : kAllDtypes) {
    for (int op = 0; op <= static_cast<int>(ReduceOp::kBitXor); ++op) {
      if (is_defined(static_cast<ReduceOp>(op), dtype))
        all.push_back({dtype, static_cast<ReduceOp>(op)});
    }
  }
  return all;
}

std::string label(const Reduction& reduction) {
  return std::string(name_of(reduction.dtype)) + " " + std::string(name_of(reduction.op));
}

std::vector<std::byte> part_of(const std::vector<std::byte>& all, std::size_t part,
                               std::size_t parts) {
  const auto bytes = static_cast<std::ptrdiff_t>(all.size() / parts);
  const auto begin = all.begin() + bytes * static_cast<std::ptrdiff_t>(part);
  return {begin, begin + bytes};
}

// ---- sums

void all_reduce_sums_in_place_and_out_of_place(ProcessGroup& group) {
  for (const auto count : kCounts) {
    auto data = values<float>(group.rank(), count);
    std::vector<float> other(count);
    group.all_reduce(std::span(other), ConstBuffer(std::span(data)), ReduceOp::kSum);
    ASSERT_EQ(data, values<float>(group.rank(), count)) << "the input changed";
    group.all_reduce(std::span(data));
    ASSERT_EQ(data, total<float>(group.world_size(), count)) << count;
    ASSERT_EQ(other, data) << count;
  }
}

void all_reduce_in_symmetric_memory_gives_the_same(ProcessGroup& group) {
  const auto buffer = group.allocate_symmetric(2 * 200'001 * sizeof(double));
  const auto all = buffer.as<double>();
  for (const auto count : kCounts) {
    // At a different offset on every rank: the ranks only have to use the same allocation.
    const auto data = all.subspan(static_cast<std::size_t>(group.rank()) * 8, count);
    const auto mine = values<double>(group.rank(), count);
    std::copy(mine.begin(), mine.end(), data.begin());
    group.all_reduce(data);
    ASSERT_EQ(std::vector<double>(data.begin(), data.end()),
              total<double>(group.world_size(), count))
        << count;
  }
}

void visits_work_on_everybodys_buffers(ProcessGroup& group) {
  const std::size_t largest = 700'001;  // several pieces of a block on transports that send blocks
  const auto symmetric = group.allocate_symmetric((largest + 8) * sizeof(float));
  const auto self = static_cast<std::size_t>(group.rank());
  for (const std::size_t count :
       {std::size_t{0}, std::size_t{1}, std::size_t{17}, kOddCount, largest}) {
    std::vector<float> ordinary(count);
    for (const auto data : {std::span(ordinary), symmetric.as<float>().subspan(self % 8, count)}) {
      const auto mine = values<float>(group.rank(), count);
      std::copy(mine.begin(), mine.end(), data.begin());
      const VisitedBlock block =
          visited_block(count, Dtype::kFloat32, group.rank(), group.world_size());
      std::size_t next = block.begin;
      const auto sum_up = [&](const Visit& visit) {
        ASSERT_EQ(visit.begin, next);
        next += visit.count;
        for (std::size_t i = 0; i < visit.count; ++i) {
          float sum = 0;
          for (int rank = 0; rank < group.world_size(); ++rank) sum += visit.of<float>(rank)[i];
          for (int rank = 0; rank < group.world_size(); ++rank) {
            visit.of<float>(rank)[i] = sum + static_cast<float>(rank);
          }
        }
      };
      if (count % 2 == 0) {
        engine(group).start_visit(data, sum_up)->wait();
      } else {
        engine(group).visit(data, sum_up);
      }
      ASSERT_EQ(next, block.begin + block.count);
      auto wanted = total<float>(group.world_size(), count);
      for (float& value : wanted) value += static_cast<float>(group.rank());
      ASSERT_TRUE(std::equal(data.begin(), data.end(), wanted.begin())) << count;
    }
  }
}

// A group made from part of the ranks, in another order, knows the memory although it allocated
// nothing itself.
void symmetric_memory_is_known_to_groups_made_of_the_group(ProcessGroup& group) {
  constexpr std::size_t kCount = 150'000;
  const auto buffer = group.allocate_symmetric(2 * kCount * sizeof(float));
  const auto odd_and_even = group.split(group.rank() % 2, -group.rank());
  const auto again = odd_and_even->split(0, 0);
  auto own = odd_and_even->allocate_symmetric(kCount * sizeof(float));
  for (const auto& part : {odd_and_even, again}) {
    if (part->backend() == "paceline") {  // a library treats all memory alike
      EXPECT_TRUE(part->is_symmetric(buffer.as<float>()));
      EXPECT_TRUE(part->is_symmetric(own.as<float>()));
    }
    const auto data = buffer.as<float>().subspan(kCount / 2, kCount);
    std::vector<float> wanted(kCount);
    for (int rank = group.rank() % 2; rank < group.world_size(); rank += 2) {
      const auto theirs = values<float>(rank, kCount);
      for (std::size_t i = 0; i < kCount; ++i) wanted[i] += theirs[i];
    }
    for (const auto& memory : {data, own.as<float>()}) {
      const auto mine = values<float>(group.rank(), kCount);
      std::copy(mine.begin(), mine.end(), memory.begin());
      part->all_reduce(memory);
      ASSERT_TRUE(std::equal(memory.begin(), memory.end(), wanted.begin()));
    }
    // Reduces from one allocation into the other.
    const auto mine = values<float>(group.rank(), kCount);
    std::copy(mine.begin(), mine.end(), data.begin());
    part->all_reduce(own.as<float>(), ConstBuffer(data), ReduceOp::kSum);
    ASSERT_EQ(std::vector<float>(data.begin(), data.end()), mine);
    ASSERT_EQ(std::vector<float>(own.as<float>().begin(), own.as<float>().end()), wanted);
  }
  // For the whole group, memory that only some of its ranks allocated together is ordinary memory.
  const auto all = total<float>(group.world_size(), kCount);
  const auto mine = values<float>(group.rank(), kCount);
  std::copy(mine.begin(), mine.end(), own.as<float>().begin());
  group.all_reduce(own.as<float>());
  ASSERT_EQ(std::vector<float>(own.as<float>().begin(), own.as<float>().end()), all);
}

void symmetric_on_some_ranks_only_still_works(ProcessGroup& group) {
  const auto buffer = group.allocate_symmetric(100'000 * sizeof(float));
  auto ordinary = values<float>(group.rank(), 100'000);
  auto data = group.rank() == 0 ? buffer.as<float>() : std::span(ordinary);
  const auto mine = values<float>(group.rank(), 100'000);
  std::copy(mine.begin(), mine.end(), data.begin());
  group.all_reduce(data);
  ASSERT_EQ(std::vector<float>(data.begin(), data.end()),
            total<float>(group.world_size(), 100'000));
}

// The divisor is 7, whatever the number of ranks.
void means_divide_by_what_the_call_says(ProcessGroup& group) {
  constexpr std::uint32_t kDivisor = 7;
  for (const auto count : kCounts) {
    auto wanted = total<float>(group.world_size(), count);
    for (float& value : wanted) value /= static_cast<float>(kDivisor);
    const auto mine = values<float>(group.rank(), count);
    std::vector<float> result(count);
    Call call{.op = Op::kAllReduce,
              .input = std::span(mine),
              .output = std::span(result),
              .reduce_op = ReduceOp::kMean,
              .divisor = kDivisor,
              .root = group.world_size() - 1};
    engine(group).run(call);
    ASSERT_EQ(result, wanted) << count;

    std::fill(result.begin(), result.end(), 0.0f);
    call.op = Op::kReduce;
    engine(group).start(call)->wait();
    ASSERT_EQ(result, group.rank() == call.root ? wanted : std::vector<float>(count)) << count;

    const std::size_t block = count / ranks_of(group);
    std::vector<float> part(block);
    call.op = Op::kReduceScatter;
    call.input = std::span(mine).first(block * ranks_of(group));
    call.output = std::span(part);
    engine(group).run(call);
    const auto first = wanted.begin() + static_cast<std::ptrdiff_t>(block) * group.rank();
    ASSERT_EQ(part, std::vector<float>(first, first + static_cast<std::ptrdiff_t>(block))) << count;
  }
}

void every_type_and_reduction(ProcessGroup& group) {
  const int world = group.world_size();
  const auto self = static_cast<std::size_t>(group.rank());
  const std::size_t count = kOddCount * ranks_of(group);
  for (const auto& reduction : all_reductions()) {
    const auto [dtype, op] = reduction;
    const auto mine = values_of(dtype, group.rank(), count);
    const auto wanted = reduced(dtype, op, world, count);
    if (group.supports(Op::kAllReduce, dtype, op)) {
      auto data = mine;
      group.all_reduce(Buffer(data.data(), count, dtype), op);
      ASSERT_EQ(data, wanted) << "all_reduce " << label(reduction);
    }
    if (group.supports(Op::kReduce, dtype, op)) {
      auto data = mine;
      group.reduce(Buffer(data.data(), count, dtype), world - 1, op);
      ASSERT_EQ(data, group.rank() == world - 1 ? wanted : mine) << "reduce " << label(reduction);
    }
    if (group.supports(Op::kReduceScatter, dtype, op)) {
      std::vector<std::byte> part(kOddCount * size_of(dtype));
      group.reduce_scatter(Buffer(part.data(), kOddCount, dtype),
                           ConstBuffer(mine.data(), count, dtype), op);
      ASSERT_EQ(part, part_of(wanted, self, ranks_of(group)))
          << "reduce_scatter " << label(reduction);
    }
  }
}

void not_a_number_wins_in_min_and_max(ProcessGroup& group) {
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    for (int holder = 0; holder < group.world_size(); ++holder) {
      std::vector<float> data(100, 1.0f);
      if (group.rank() == holder) data[50] = std::numeric_limits<float>::quiet_NaN();
      group.all_reduce(std::span(data), op);
      ASSERT_TRUE(std::isnan(data[50])) << name_of(op) << ", from rank " << holder;
      ASSERT_EQ(data[49], 1.0f);
    }
  }
}

void what_is_not_supported_names_a_backend_that_can(ProcessGroup& group) {
  auto data = std::vector<std::int64_t>(10, 1);
  for (const Dtype dtype : kAllDtypes) {
    for (int op = 0; op <= static_cast<int>(ReduceOp::kBitXor); ++op) {
      const auto reduce_op = static_cast<ReduceOp>(op);
      if (group.supports(Op::kAllReduce, dtype, reduce_op)) continue;
      try {
        group.all_reduce(Buffer(data.data(), 1, dtype), reduce_op);
        ADD_FAILURE() << name_of(dtype) << " " << name_of(reduce_op) << " is not supported";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
        EXPECT_THAT(error.what(),
                    is_defined(reduce_op, dtype)
                        ? Says("backend.not_supported")
                        : Says("backend.not_defined", name_of(reduce_op), name_of(dtype)));
      }
    }
  }
  if (!group.supports(Op::kGather, Dtype::kInt64)) {
    std::vector<std::int64_t> all(ranks_of(group));
    try {
      group.gather(std::span(all), std::span(data).first(1), 0);
      ADD_FAILURE() << "gather is not supported";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_THAT(error.what(), Says("backend.not_supported"));
    }
  }
  EXPECT_EQ(all_reduce_value(group, 1), group.world_size());  // the group still works
}

// ---- moving

void broadcast_and_reduce_with_every_root(ProcessGroup& group) {
  for (int root = 0; root < group.world_size(); ++root) {
    for (const auto count : kCounts) {
      auto data = values<std::int32_t>(group.rank(), count);
      group.broadcast(std::span(data), root);
      ASSERT_EQ(data, values<std::int32_t>(root, count));
      data = values<std::int32_t>(group.rank(), count);
      group.reduce(std::span(data), root);
      ASSERT_EQ(data, group.rank() == root ? total<std::int32_t>(group.world_size(), count)
                                           : values<std::int32_t>(group.rank(), count));
    }
  }
}

void gathers_and_scatters(ProcessGroup& group) {
  for (const std::size_t count : kBlockCounts) {
    std::vector<std::int64_t> everything;
    for (int rank = 0; rank < group.world_size(); ++rank) {
      const auto part = values<std::int64_t>(rank, count);
      everything.insert(everything.end(), part.begin(), part.end());
    }
    const auto mine = values<std::int64_t>(group.rank(), count);
    std::vector<std::int64_t> all(count * ranks_of(group));
    group.all_gather(std::span(all), std::span(mine));
    ASSERT_EQ(all, everything) << count;

    if (!group.supports(Op::kGather, Dtype::kInt64)) continue;
    for (int root = 0; root < group.world_size(); ++root) {
      std::fill(all.begin(), all.end(), 0);
      std::vector<std::int64_t> one(count);
      if (group.rank() == root) {
        group.gather(std::span(all), std::span(mine), root);
        ASSERT_EQ(all, everything) << count;
        group.scatter(std::span(one), std::span(all), root);
      } else {
        group.gather({}, std::span(mine), root);
        group.scatter(std::span(one), {}, root);
      }
      ASSERT_EQ(one, mine) << count;
    }
  }
}

void all_gather_in_place_and_in_symmetric_memory(ProcessGroup& group) {
  const std::size_t count = 30'000;
  const auto buffer = group.allocate_symmetric(count * ranks_of(group) * sizeof(float));
  const auto all = buffer.as<float>();
  const auto mine = all.subspan(count * static_cast<std::size_t>(group.rank()), count);
  const auto wanted = values<float>(group.rank(), count);
  std::copy(wanted.begin(), wanted.end(), mine.begin());
  group.all_gather(all, mine);
  for (int rank = 0; rank < group.world_size(); ++rank) {
    const auto part = all.subspan(count * static_cast<std::size_t>(rank), count);
    ASSERT_EQ(std::vector<float>(part.begin(), part.end()), values<float>(rank, count));
  }
}

// `memory` has room for a block of `count` elements for each rank.
void use_own_blocks(ProcessGroup& group, std::span<float> memory, std::size_t count) {
  SCOPED_TRACE(count);
  const auto self = static_cast<std::size_t>(group.rank());
  const auto all = memory.first(count * ranks_of(group));
  const auto own = all.subspan(self * count, count);
  const auto input = values<float>(group.rank(), all.size());
  const auto is_own = [&](std::size_t i) { return i / count == self; };

  std::copy(input.begin(), input.end(), all.begin());
  group.reduce_scatter(own, all);
  ASSERT_EQ(std::vector<float>(own.begin(), own.end()),
            total<float>(group.world_size(), count, self * count));
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (is_own(i)) continue;
    ASSERT_EQ(all[i], input[i]) << "element " << i;
  }
  if (!group.supports(Op::kScatter, Dtype::kFloat32)) return;
  for (int root = 0; root < group.world_size(); ++root) {
    const bool is_root = group.rank() == root;
    const auto given = values<float>(root, all.size());
    if (is_root) std::copy(given.begin(), given.end(), all.begin());
    group.scatter(own, is_root ? ConstBuffer(all) : ConstBuffer(), root);
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!is_root && !is_own(i)) continue;
      ASSERT_EQ(all[i], given[i]) << "element " << i;
    }
    group.gather(is_root ? Buffer(all) : Buffer(), own, root);
    if (!is_root) continue;
    ASSERT_EQ(std::vector<float>(all.begin(), all.end()), given);
  }
}

void own_blocks_may_be_input_or_output(ProcessGroup& group) {
  constexpr std::size_t kMaxElements = 30'000;
  const auto buffer = group.allocate_symmetric(kMaxElements * ranks_of(group) * sizeof(float));
  std::vector<float> plain(kMaxElements * ranks_of(group));
  for (const std::size_t count : {std::size_t(3), std::size_t(2'000), kMaxElements}) {
    use_own_blocks(group, buffer.as<float>(), count);
    use_own_blocks(group, plain, count);
  }
}

void reduce_scatter_and_all_to_all(ProcessGroup& group) {
  const auto self = static_cast<std::size_t>(group.rank());
  for (const std::size_t count : kBlockCounts) {
    const auto input = values<float>(group.rank(), count * ranks_of(group));
    std::vector<float> part(count);
    group.reduce_scatter(std::span(part), std::span(input));
    ASSERT_EQ(part, total<float>(group.world_size(), count, self * count)) << count;

    std::vector<float> exchanged(count * ranks_of(group));
    group.all_to_all(std::span(exchanged), std::span(input));
    for (int rank = 0; rank < group.world_size(); ++rank) {
      const auto begin =
          exchanged.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(rank) * count);
      ASSERT_EQ(std::vector<float>(begin, begin + static_cast<std::ptrdiff_t>(count)),
                values<float>(rank, count, self * count));
    }
  }
}

void every_type_is_moved(ProcessGroup& group) {
  const int last = group.world_size() - 1;
  for (const Dtype dtype : kAllDtypes) {
    SCOPED_TRACE(name_of(dtype));
    const auto mine = values_of(dtype, group.rank(), kOddCount);
    std::vector<std::byte> everything;
    for (int rank = 0; rank <= last; ++rank) {
      const auto part = values_of(dtype, rank, kOddCount);
      everything.insert(everything.end(), part.begin(), part.end());
    }
    const std::size_t count = kOddCount * ranks_of(group);
    if (group.supports(Op::kBroadcast, dtype)) {
      auto data = mine;
      group.broadcast(Buffer(data.data(), kOddCount, dtype), last);
      ASSERT_EQ(data, values_of(dtype, last, kOddCount));
    }
    std::vector<std::byte> all(everything.size());
    if (group.supports(Op::kAllGather, dtype)) {
      group.all_gather(Buffer(all.data(), count, dtype),
                       ConstBuffer(mine.data(), kOddCount, dtype));
      ASSERT_EQ(all, everything);
    }
    if (group.supports(Op::kAllToAll, dtype)) {
      group.all_to_all(Buffer(all.data(), count, dtype),
                       ConstBuffer(everything.data(), count, dtype));
      ASSERT_EQ(part_of(all, 0, ranks_of(group)), mine);
    }
  }
}

void messages_go_round(ProcessGroup& group) {
  if (group.world_size() == 1) return;
  const int next = (group.rank() + 1) % group.world_size();
  const int previous = (group.rank() + group.world_size() - 1) % group.world_size();
  for (const auto count : kBlockCounts) {
    const auto mine = values<double>(group.rank(), count);
    std::vector<double> theirs(count);
    const auto received = group.irecv(std::span(theirs), previous, 7);
    const auto sent = group.isend(std::span(mine), next, 7);
    ASSERT_EQ(all_reduce_value(group, 1), group.world_size());
    received->wait();
    sent->wait();
    ASSERT_EQ(theirs, values<double>(previous, count));
  }
}

// ---- order, groups

void asynchronous_operations_run_in_order_beside_blocking_ones(ProcessGroup& group) {
  std::vector<std::vector<float>> buffers;
  std::vector<WorkPtr> works;
  for (std::size_t i = 0; i < 20; ++i)
    buffers.push_back(values<float>(group.rank(), 100 * (i + 1)));
  for (auto& buffer : buffers)
    works.push_back(group.all_reduce(std::span(buffer), ReduceOp::kSum, {.async_op = true}));
  auto last = values<float>(group.rank(), 77);
  group.all_reduce(std::span(last));
  for (const auto& work : works) EXPECT_TRUE(work->is_completed());
  for (const auto& buffer : buffers) {
    ASSERT_EQ(buffer, total<float>(group.world_size(), buffer.size()));
  }
  ASSERT_EQ(last, total<float>(group.world_size(), 77));
}

void barriers_hold_everybody(ProcessGroup& group) {
  for (int i = 0; i < 100; ++i) group.barrier();
  group.barrier({.async_op = true})->wait();
  group.monitored_barrier(20s);
}

void sub_groups_and_splits(ProcessGroup& group) {
  std::vector<int> even;
  for (int rank = 0; rank < group.world_size(); rank += 2) even.push_back(rank);
  const auto evens = group.new_group(even);
  EXPECT_EQ(evens->is_member(), group.rank() % 2 == 0);
  if (evens->is_member()) {
    EXPECT_EQ(evens->world_ranks(), even);
    EXPECT_EQ(evens->backend(), group.backend());
    EXPECT_EQ(all_reduce_value(*evens, 1), static_cast<int>(even.size()));
  }
  // The keys reverse the order of the ranks.
  const auto half = group.split(group.rank() % 2, -group.rank());
  ASSERT_TRUE(half->is_member());
  std::vector<std::int32_t> ranks(static_cast<std::size_t>(half->world_size()));
  const std::int32_t mine = group.rank();
  half->all_gather(std::span(ranks), std::span(&mine, 1));
  EXPECT_TRUE(std::is_sorted(ranks.rbegin(), ranks.rend()));
  EXPECT_EQ(group.split(group.rank() == 0 ? -1 : 0, 0)->is_member(), group.rank() != 0);
}

void two_groups_may_be_used_in_different_orders(ProcessGroup& group) {
  const auto one = group.new_group(all_ranks(group));
  const auto two = group.new_group(all_ranks(group));
  auto a = values<float>(group.rank(), 50'000);
  auto b = a;
  const bool odd = group.rank() % 2 == 1;
  const auto first = odd ? two->all_reduce(std::span(b), ReduceOp::kSum, {.async_op = true})
                         : one->all_reduce(std::span(a), ReduceOp::kSum, {.async_op = true});
  const auto second = odd ? one->all_reduce(std::span(a), ReduceOp::kSum, {.async_op = true})
                          : two->all_reduce(std::span(b), ReduceOp::kSum, {.async_op = true});
  first->wait();
  second->wait();
  ASSERT_EQ(a, total<float>(group.world_size(), 50'000));
  ASSERT_EQ(b, a);
}

void groups_come_and_go(ProcessGroup& group) {
  for (int i = 0; i < 5; ++i) {
    const auto other = group.new_group(all_ranks(group));
    auto data = values<float>(group.rank(), 20'000);
    other->all_reduce(std::span(data));
    ASSERT_EQ(data, total<float>(group.world_size(), 20'000));
  }
}

// ---- errors: each ends a group that the check has made for it

void a_mismatch_is_a_typed_error_on_every_rank(ProcessGroup& group) {
  if (group.world_size() == 1) return;
  const bool odd = group.rank() == group.world_size() - 1;
  std::vector<float> data(2000, 1.0f);
  try {
    // A rank that receives its last message of the forming late may learn of the mismatch in
    // new_group() already.
    const auto doomed = group.new_group(all_ranks(group));
    doomed->all_reduce(std::span(data).first(odd ? 1999 : 2000));
    ADD_FAILURE() << "rank " << group.rank() << " noticed nothing";
  } catch (const Error& error) {
    EXPECT_TRUE(error.code() == ErrorCode::kInvalid || error.code() == ErrorCode::kAborted);
    EXPECT_THAT(error.what(), HasSubstr("x 1999"));
    EXPECT_THAT(error.what(), HasSubstr("x 2000"));
  }
  EXPECT_EQ(data[0], 1.0f) << "something was added up";
  group.barrier();
}

void a_missing_rank_is_a_timeout_that_names_it(ProcessGroup& group) {
  if (group.world_size() == 1) return;
  const int missing = group.world_size() - 1;
  const auto doomed = group.new_group(all_ranks(group));
  if (group.rank() != missing) {
    std::vector<float> data(2000, 1.0f);
    try {
      doomed->all_reduce(std::span(data), ReduceOp::kSum, {.timeout = 300ms});
      ADD_FAILURE() << "rank " << group.rank() << " noticed nothing";
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == ErrorCode::kTimeout || error.code() == ErrorCode::kAborted);
      EXPECT_EQ(error.operation(), "all_reduce") << error.what();
      EXPECT_EQ(error.group(), doomed->name()) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("rank " + std::to_string(missing)));
    }
  }
  group.barrier();
}

void an_abort_reaches_the_others_with_its_reason(ProcessGroup& group) {
  if (group.world_size() == 1) return;
  const auto doomed = group.new_group(all_ranks(group));
  std::vector<float> data(100'000, 1.0f);
  try {
    doomed->barrier();
    if (group.rank() == 0) doomed->abort("the loss is not finite");
    doomed->all_reduce(std::span(data));
    ADD_FAILURE() << "rank " << group.rank() << " noticed nothing";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kAborted);
    EXPECT_THAT(error.what(), HasSubstr("the loss is not finite"));
  }
  group.barrier();
}

constexpr Check kChecks[] = {
    {"all_reduce_sums_in_place_and_out_of_place", all_reduce_sums_in_place_and_out_of_place},
    {"all_reduce_in_symmetric_memory_gives_the_same",
     all_reduce_in_symmetric_memory_gives_the_same},
    {"visits_work_on_everybodys_buffers", visits_work_on_everybodys_buffers},
    {"symmetric_memory_is_known_to_groups_made_of_the_group",
     symmetric_memory_is_known_to_groups_made_of_the_group},
    {"symmetric_on_some_ranks_only_still_works", symmetric_on_some_ranks_only_still_works},
    {"means_divide_by_what_the_call_says", means_divide_by_what_the_call_says},
    {"every_type_and_reduction", every_type_and_reduction},
    {"not_a_number_wins_in_min_and_max", not_a_number_wins_in_min_and_max},
    {"what_is_not_supported_names_a_backend_that_can",
     what_is_not_supported_names_a_backend_that_can},
    {"broadcast_and_reduce_with_every_root", broadcast_and_reduce_with_every_root},
    {"gathers_and_scatters", gathers_and_scatters},
    {"all_gather_in_place_and_in_symmetric_memory", all_gather_in_place_and_in_symmetric_memory},
    {"own_blocks_may_be_input_or_output", own_blocks_may_be_input_or_output},
    {"reduce_scatter_and_all_to_all", reduce_scatter_and_all_to_all},
    {"every_type_is_moved", every_type_is_moved},
    {"messages_go_round", messages_go_round},
    {"asynchronous_operations_run_in_order_beside_blocking_ones",
     asynchronous_operations_run_in_order_beside_blocking_ones},
    {"barriers_hold_everybody", barriers_hold_everybody},
    {"sub_groups_and_splits", sub_groups_and_splits},
    {"two_groups_may_be_used_in_different_orders", two_groups_may_be_used_in_different_orders},
    {"groups_come_and_go", groups_come_and_go},
    {"a_mismatch_is_a_typed_error_on_every_rank", a_mismatch_is_a_typed_error_on_every_rank},
    {"a_missing_rank_is_a_timeout_that_names_it", a_missing_rank_is_a_timeout_that_names_it},
    {"an_abort_reaches_the_others_with_its_reason", an_abort_reaches_the_others_with_its_reason},
};

}  // namespace

std::span<const Check> checks() { return kChecks; }

}  // namespace paceline::conformance
