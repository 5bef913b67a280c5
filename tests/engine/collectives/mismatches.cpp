#include "tests/engine/collectives/mismatches.h"

#include <algorithm>
#include <chrono>
#include <iostream>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/collectives/group/engine_group.h"

#include "tests/harness/says.h"

namespace paceline {
namespace {

using harness::Says;
using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using Clock = std::chrono::steady_clock;

using By = const Caller&;

constexpr Mismatch kMismatches[] = {
    {"count_smaller", [](By c) { c.all_reduce(999); }, [](By c) { c.all_reduce(1000); }},
    {"count_larger", [](By c) { c.all_reduce(100'000); }, [](By c) { c.all_reduce(1000); }},
    {"count_far_larger", [](By c) { c.all_reduce(9'000'000); }, [](By c) { c.all_reduce(10); }},
    {"count_zero", [](By c) { c.all_reduce(0); }, [](By c) { c.all_reduce(1); }},
    {"count_of_many_pieces", [](By c) { c.all_reduce(700'001); },
     [](By c) { c.all_reduce(700'000); }},
    {"count_symmetric", [](By c) { c.all_reduce_symmetric(900'000); },
     [](By c) { c.all_reduce_symmetric(900'001); }},
    {"type_of_same_size", [](By c) { c.all_reduce_integers(1000); },
     [](By c) { c.all_reduce(1000); }},
    {"type_of_other_size", [](By c) { c.all_reduce_doubles(1000); },
     [](By c) { c.all_reduce(1000); }},
    {"type_with_the_same_bytes", [](By c) { c.all_reduce_as_doubles(1000); },
     [](By c) { c.all_reduce(1000); }},
    {"sum_and_product", [](By c) { c.all_reduce(1000, ReduceOp::kProduct); },
     [](By c) { c.all_reduce(1000); }},
    {"sum_and_mean", [](By c) { c.all_reduce(1000, ReduceOp::kMean); },
     [](By c) { c.all_reduce(1000); }},
    {"divisors_of_means",
     [](By c) {
       c.divided_mean(Op::kAllReduce, 4);
       c.divided_mean(Op::kReduce, 3);
     },
     [](By c) {
       c.divided_mean(Op::kAllReduce, 4);
       c.divided_mean(Op::kReduce, 8);
     }},
    {"sum_and_max_large", [](By c) { c.all_reduce(300'000, ReduceOp::kMax); },
     [](By c) { c.all_reduce(300'000); }},
    {"sum_and_max_symmetric", [](By c) { c.all_reduce_symmetric(300'000, ReduceOp::kMax); },
     [](By c) { c.all_reduce_symmetric(300'000); }},
    {"reductions_of_reduce", [](By c) { c.reduce(0, ReduceOp::kMin); }, [](By c) { c.reduce(0); }},
    {"reductions_of_reduce_scatter", [](By c) { c.reduce_scatter(10, ReduceOp::kMax); },
     [](By c) { c.reduce_scatter(10); }},
    {"reductions_of_reduce_scatter_v", [](By c) { c.reduce_scatter_v(0, ReduceOp::kMax); },
     [](By c) { c.reduce_scatter_v(0); }},
    {"root_of_broadcast", [](By c) { c.broadcast(1); }, [](By c) { c.broadcast(0); }},
    {"root_of_reduce", [](By c) { c.reduce(1); }, [](By c) { c.reduce(0); }},
    {"root_of_gather", [](By c) { c.gather(1); }, [](By c) { c.gather(0); }},
    {"root_of_scatter", [](By c) { c.scatter(1); }, [](By c) { c.scatter(0); }},
    {"kind", [](By c) { c.broadcast(0); }, [](By c) { c.all_reduce(1000); }},
    {"reduce_and_all_reduce", [](By c) { c.reduce(0); }, [](By c) { c.all_reduce(1000); }},
    {"all_gather_and_all_to_all", [](By c) { c.all_gather(100); }, [](By c) { c.all_to_all(100); }},
    {"all_gather_and_all_gather_v", [](By c) { c.all_gather(20); },
     [](By c) { c.all_gather_v(0); }},
    {"barrier_and_all_reduce", [](By c) { c.group.barrier(); }, [](By c) { c.all_reduce(50'000); }},
    {"split_and_barrier", [](By c) { c.group.split(0, 0); }, [](By c) { c.group.barrier(); }},
    {"new_group_and_sum", [](By c) { c.group.new_group({0}); }, [](By c) { c.all_reduce(1000); }},
    {"new_group_and_split", [](By c) { c.group.new_group({0}); },
     [](By c) { c.group.split(0, 0); }},
    {"allocation_and_sum", [](By c) { c.group.allocate_symmetric(1000); },
     [](By c) { c.all_reduce(1000); }},
    {"order",
     [](By c) {
       c.broadcast(0);
       c.all_reduce(1000);
     },
     [](By c) {
       c.all_reduce(1000);
       c.broadcast(0);
     }},
    {"order_of_async",
     [](By c) {
       std::vector<float> data(c.least + 1000);
       const auto first = c.group.broadcast(std::span(data), 0, {.async_op = true});
       const auto second = c.group.all_reduce(std::span(data), ReduceOp::kSum, {.async_op = true});
       first->wait();
       second->wait();
     },
     [](By c) {
       std::vector<float> data(c.least + 1000);
       const auto first = c.group.all_reduce(std::span(data), ReduceOp::kSum, {.async_op = true});
       const auto second = c.group.broadcast(std::span(data), 0, {.async_op = true});
       first->wait();
       second->wait();
     }},
    {"one_call_too_many",
     [](By c) {
       c.all_reduce(1000);
       c.all_reduce(1000);
     },
     [](By c) { c.group.barrier(); }},
    {"allocation_sizes", [](By c) { c.group.allocate_symmetric(1 << 20); },
     [](By c) { c.group.allocate_symmetric(1 << 21); }},
    {"all_gather_counts", [](By c) { c.all_gather(11); }, [](By c) { c.all_gather(10); }},
    {"all_gather_counts_large", [](By c) { c.all_gather(200'000); },
     [](By c) { c.all_gather(200'001); }},
    {"all_gather_v_counts", [](By c) { c.all_gather_v(10); }, [](By c) { c.all_gather_v(0); }},
    {"all_to_all_counts", [](By c) { c.all_to_all(9); }, [](By c) { c.all_to_all(10); }},
    {"all_to_all_counts_large", [](By c) { c.all_to_all(200'001); },
     [](By c) { c.all_to_all(200'000); }},
    {"reduce_scatter_counts", [](By c) { c.reduce_scatter(11); },
     [](By c) { c.reduce_scatter(10); }},
    {"reduce_scatter_v_counts", [](By c) { c.reduce_scatter_v(10); },
     [](By c) { c.reduce_scatter_v(0); }},
    {"gather_counts", [](By c) { c.gather(0, 11); }, [](By c) { c.gather(0, 10); }},
    {"scatter_counts", [](By c) { c.scatter(0, 11); }, [](By c) { c.scatter(0, 10); }},
    {"broadcast_counts", [](By c) { c.broadcast(0, 70'000); },
     [](By c) { c.broadcast(0, 70'001); }},
    {"async_of_other_size", [](By c) { c.all_reduce_async(10); }, [](By c) { c.all_reduce(1000); }},
    {"async_of_another_kind", [](By c) { c.broadcast_async(0); }, [](By c) { c.all_reduce(1000); }},
};

// Milliseconds until a mismatch was noticed, by MismatchRun::over.
std::map<std::string, std::vector<double>>& noticed() {
  static std::map<std::string, std::vector<double>> all;
  return all;
}

}  // namespace

std::vector<float> Caller::floats(std::size_t count) const {
  return std::vector<float>(least + count, 1.0f);
}

std::vector<float> Caller::blocks(std::size_t count) const {
  return std::vector<float>((least + count) * world_of(group), 1.0f);
}

template <class T>
void Caller::sum_of(std::size_t count) const {
  std::vector<T> data(count, T(1));
  group.all_reduce(std::span(data));
}

void Caller::all_reduce(std::size_t count, ReduceOp op) const {
  auto data = floats(count);
  group.all_reduce(std::span(data), op);
}

void Caller::all_reduce_symmetric(std::size_t count, ReduceOp op) const {
  const auto memory = group.allocate_symmetric(4 << 20);
  group.all_reduce(memory.as<float>().first(least + count), op);
}

void Caller::divided_mean(Op op, std::uint32_t divisor) const {
  auto data = floats(1000);
  engine(group).run({.op = op,
                     .input = std::span(data),
                     .output = std::span(data),
                     .reduce_op = ReduceOp::kMean,
                     .divisor = divisor});
}

void Caller::all_reduce_integers(std::size_t count) const { sum_of<std::int32_t>(least + count); }

void Caller::all_reduce_doubles(std::size_t count) const { sum_of<double>(least + count); }

void Caller::all_reduce_as_doubles(std::size_t count) const { sum_of<double>((least + count) / 2); }

void Caller::all_reduce_async(std::size_t count) const {
  auto data = floats(count);
  group.all_reduce(std::span(data), ReduceOp::kSum, {.async_op = true})->wait();
}

void Caller::broadcast(int root, std::size_t count) const {
  auto data = floats(count);
  group.broadcast(std::span(data), root);
}

void Caller::broadcast_async(int root) const {
  auto data = floats(1000);
  group.broadcast(std::span(data), root, {.async_op = true})->wait();
}

void Caller::reduce(int root, ReduceOp op) const {
  auto data = floats(1000);
  group.reduce(std::span(data), root, op);
}

void Caller::all_gather(std::size_t count) const {
  const auto mine = floats(count);
  auto all = blocks(count);
  group.all_gather(std::span(all), std::span(mine));
}

void Caller::gather(int root, std::size_t count) const {
  const auto mine = floats(count);
  auto all = blocks(count);
  group.gather(group.rank() == root ? Buffer(std::span(all)) : Buffer(), std::span(mine), root);
}

void Caller::scatter(int root, std::size_t count) const {
  const auto all = blocks(count);
  auto mine = floats(count);
  group.scatter(std::span(mine), group.rank() == root ? ConstBuffer(std::span(all)) : ConstBuffer(),
                root);
}

void Caller::reduce_scatter(std::size_t count, ReduceOp op) const {
  const auto all = blocks(count);
  auto mine = floats(count);
  group.reduce_scatter(std::span(mine), std::span(all), op);
}

void Caller::all_to_all(std::size_t count) const {
  const auto input = blocks(count);
  auto output = blocks(count);
  group.all_to_all(std::span(output), std::span(input));
}

std::vector<std::size_t> Caller::counts(std::size_t moved) const {
  std::vector<std::size_t> each(world_of(group), least + 20);
  each[0] += moved;
  each[1] -= moved;
  return each;
}

void Caller::all_gather_v(std::size_t moved) const {
  const auto each = counts(moved);
  const std::vector<float> mine(each[static_cast<std::size_t>(group.rank())]);
  auto all = blocks(20);
  group.all_gather_v(std::span(all), std::span(mine), each);
}

void Caller::reduce_scatter_v(std::size_t moved, ReduceOp op) const {
  const auto each = counts(moved);
  const auto all = blocks(20);
  std::vector<float> mine(each[static_cast<std::size_t>(group.rank())]);
  group.reduce_scatter_v(std::span(mine), std::span(all), each, op);
}

std::span<const Mismatch> mismatches() { return kMismatches; }

void print_noticed() {
  for (auto& [over, all] : noticed()) {
    std::sort(all.begin(), all.end());
    const auto at = [&](double part) {
      return all[static_cast<std::size_t>(part * static_cast<double>(all.size() - 1))];
    };
    std::cout << "mismatches noticed over " << over << " " << all.size() << " times: p50 "
              << at(0.5) << " ms, p99 " << at(0.99) << " ms, most " << all.back() << " ms\n";
  }
  noticed().clear();
}

void expect_noticed(const Mismatch& mismatch, MismatchRun run) {
  SCOPED_TRACE(std::string(mismatch.name) + ", rank " + std::to_string(run.odd));
  std::vector<Clock::time_point> called(static_cast<std::size_t>(run.world));
  std::vector<Clock::time_point> heard(called.size());
  run.options.group_timeout = kNever;
  const auto results = harness::run_ranks(
      run.world,
      [&](ProcessGroup& group) {
        const auto rank = static_cast<std::size_t>(group.rank());
        if (run.inspect) run.inspect(group);
        const Caller caller{group, run.least};
        caller.all_reduce(10);
        called[rank] = Clock::now();
        try {
          (group.rank() == run.odd ? mismatch.odd : mismatch.even)(caller);
        } catch (const Error&) {
          heard[rank] = Clock::now();
          throw;
        }
        ADD_FAILURE() << "rank " << rank << " noticed nothing";
      },
      run.options);
  const auto last_called = *std::max_element(called.begin(), called.end());
  bool somebody_compared = false;
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    const auto& error = results[rank].error;
    ASSERT_TRUE(error) << "rank " << rank;
    EXPECT_THAT(error->code(), AnyOf(ErrorCode::kInvalid, ErrorCode::kAborted)) << error->what();
    // The text has the cause with both calls, even if another rank found the mismatch.
    EXPECT_THAT(error->what(), Says("mismatch.collectives", "world"));
    EXPECT_EQ(error->group(), "world") << error->what();
    EXPECT_THAT(error->operation(), Not(IsEmpty())) << error->what();
    EXPECT_THAT(error->ranks(), ElementsAre(testing::_)) << error->what();
    somebody_compared |= error->code() == ErrorCode::kInvalid;
    EXPECT_LT(heard[rank] - last_called, kLimit) << error->what();
    const auto took = std::max(heard[rank] - last_called, Clock::duration(0));
    noticed()[run.over].push_back(std::chrono::duration<double, std::milli>(took).count());
  }
  EXPECT_TRUE(somebody_compared);
}

void expect_algorithm(const ProcessGroup& group, Algorithm algorithm) {
  for (const Op op : {Op::kAllReduce, Op::kBroadcast, Op::kReduce, Op::kAllGather, Op::kGather,
                      Op::kScatter, Op::kReduceScatter, Op::kAllToAll, Op::kBarrier,
                      Op::kAllGatherV, Op::kReduceScatterV, Op::kAllToAllV}) {
    if (!serves(algorithm, op)) continue;
    for (const std::size_t count : {0u, 1000u, 9'000'000u}) {
      EXPECT_THAT(group.explain(op, Dtype::kFloat32, count),
                  HasSubstr("* " + std::string(name_of(algorithm)) + " "));
    }
  }
}

}  // namespace paceline
