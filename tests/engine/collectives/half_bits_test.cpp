// Sums of 16-bit floats in whole groups: over every transport, in every kind of memory, between
// made-up hosts and with every algorithm, they are bitwise equal to the result of the portable
// kernel.

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "paceline/engine/collectives/kernels/reduce.h"
#include "paceline/engine/collectives/op_traits.h"

#include "tests/engine/collectives/quick_random.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using Numbers = std::vector<std::uint16_t>;

struct HalfSetting {
  const char* name;
  TransportKind transport = TransportKind::kAuto;
  std::vector<int> host_of;  // the host of each rank
  std::optional<Algorithm> algorithm = {};
};

// Numbers near 1, so that most sums must be rounded; every 16th is subnormal.
Numbers numbers_of(int rank, std::size_t count, Dtype dtype) {
  QuickRandom random(static_cast<std::uint64_t>(rank) * 1000 + count);
  const unsigned mantissa_bits = dtype == Dtype::kFloat16 ? 10 : 7;
  const unsigned bias = dtype == Dtype::kFloat16 ? 15 : 127;
  Numbers numbers(count);
  for (auto& number : numbers) {
    const auto bits = random();
    const unsigned exponent = bits % 16 == 0 ? 0 : bias - 4 + (bits >> 4) % 8;
    const unsigned mantissa = (bits >> 7) & ((1u << mantissa_bits) - 1);
    number = static_cast<std::uint16_t>((bits >> 31) << 15 | exponent << mantissa_bits | mantissa);
  }
  return numbers;
}

Numbers expected_sum(int world, std::size_t count, Dtype dtype, ReduceOp op) {
  std::vector<Numbers> inputs;
  std::vector<ReduceSource> sources;
  for (int rank = 0; rank < world; ++rank) inputs.push_back(numbers_of(rank, count, dtype));
  for (const auto& input : inputs) {
    sources.push_back({reinterpret_cast<const std::byte*>(input.data())});
  }
  Numbers sum(count);
  auto* const out = reinterpret_cast<std::byte*>(sum.data());
  portable::reduce({sources.data(), sources.size(), &out, 1, count, dtype, op, ReduceResult::kFinal,
                    sources.size()});
  return sum;
}

void expect_sums(ProcessGroup& group, std::size_t count, Dtype dtype, ReduceOp op) {
  const int world = group.world_size();
  const auto what = testing::Message() << name_of(dtype) << " x " << count << " " << name_of(op)
                                       << ", rank " << group.rank() << " of " << world;
  const Numbers mine = numbers_of(group.rank(), count, dtype);
  const Numbers sum = expected_sum(world, count, dtype, op);
  Numbers data = mine;
  group.all_reduce(Buffer(data.data(), count, dtype), op);
  ASSERT_EQ(data, sum) << "all_reduce of " << what;

  const auto shared = group.allocate_symmetric(count * 2);
  std::memcpy(shared.data(), mine.data(), count * 2);
  group.all_reduce(Buffer(shared.data(), count, dtype), op);
  ASSERT_EQ(std::memcmp(shared.data(), sum.data(), count * 2), 0)
      << "in symmetric memory, " << what;

  for (const int root : {0, world - 1}) {
    data = mine;
    group.reduce(Buffer(data.data(), count, dtype), root, op);
    if (group.rank() == root) {
      ASSERT_EQ(data, sum) << "reduce to " << root << " of " << what;
    }
  }

  const std::size_t whole = count * static_cast<std::size_t>(world);
  const Numbers wide = numbers_of(group.rank(), whole, dtype);
  const Numbers wide_sum = expected_sum(world, whole, dtype, op);
  Numbers part(count);
  group.reduce_scatter(Buffer(part.data(), count, dtype), ConstBuffer(wide.data(), whole, dtype),
                       op);
  const auto first = wide_sum.begin() + static_cast<std::ptrdiff_t>(count) * group.rank();
  ASSERT_EQ(part, Numbers(first, first + static_cast<std::ptrdiff_t>(count)))
      << "reduce_scatter of " << what;
}

class HalfBitsTest : public testing::TestWithParam<HalfSetting> {};

TEST_P(HalfBitsTest, sums_of_16_bit_floats_have_the_bits_of_the_portable_kernel) {
  const HalfSetting& setting = GetParam();
  harness::RanksOptions options;
  options.transport = setting.transport;
  options.adjust = [&setting](int rank, GroupOptions& group) {
    const int host = setting.host_of[static_cast<std::size_t>(rank)];
    if (host >= 0) group.link.host = "h" + std::to_string(host);
    group.planning.algorithm = setting.algorithm;
  };
  const auto body = [](ProcessGroup& group) {
    for (const Dtype dtype : {Dtype::kFloat16, Dtype::kBfloat16}) {
      for (const std::size_t count : {1, 63, 5000, 70'001}) {
        for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean}) {
          expect_sums(group, count, dtype, op);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  };
  harness::run_ranks_ok(static_cast<int>(setting.host_of.size()), body, options);
}

// Host -1: the rank keeps its real host.
INSTANTIATE_TEST_SUITE_P(
    Over, HalfBitsTest,
    testing::Values(
        HalfSetting{"loopback_2", TransportKind::kLoopback, {-1, -1}},
        HalfSetting{"loopback_5", TransportKind::kLoopback, {-1, -1, -1, -1, -1}},
        HalfSetting{"shm_2", TransportKind::kShm, {-1, -1}},
        HalfSetting{"shm_3", TransportKind::kShm, {-1, -1, -1}},
        HalfSetting{"shm_5", TransportKind::kShm, {-1, -1, -1, -1, -1}},
        HalfSetting{"tcp_2", TransportKind::kTcp, {-1, -1}},
        HalfSetting{"tcp_3", TransportKind::kTcp, {-1, -1, -1}},
        HalfSetting{"tcp_5", TransportKind::kTcp, {-1, -1, -1, -1, -1}},
        HalfSetting{"tcp_direct", TransportKind::kTcp, {-1, -1, -1, -1, -1}, Algorithm::kDirect},
        HalfSetting{"tcp_one_shot", TransportKind::kTcp, {-1, -1, -1}, Algorithm::kOneShot},
        HalfSetting{"tcp_tree", TransportKind::kTcp, {-1, -1, -1, -1, -1}, Algorithm::kTree},
        HalfSetting{
            "tcp_doubling", TransportKind::kTcp, {-1, -1, -1, -1, -1}, Algorithm::kDoubling},
        HalfSetting{"tcp_halving", TransportKind::kTcp, {-1, -1, -1, -1, -1}, Algorithm::kHalving},
        HalfSetting{"two_hosts_of_two", TransportKind::kAuto, {0, 0, 1, 1}, Algorithm::kHierarchy},
        HalfSetting{"hosts_in_turn", TransportKind::kAuto, {0, 1, 0, 1}, Algorithm::kHierarchy},
        HalfSetting{"unequal_hosts", TransportKind::kAuto, {0, 0, 0, 1, 2}, Algorithm::kHierarchy},
        HalfSetting{
            "unequal_hosts_doubling", TransportKind::kAuto, {0, 0, 0, 1, 2}, Algorithm::kDoubling},
        HalfSetting{"three_hosts", TransportKind::kAuto, {0, 1, 2}}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace paceline
