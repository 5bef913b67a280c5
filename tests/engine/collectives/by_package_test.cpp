// Sums by package have the bits of the direct ones, in every kind of memory and call.

#include <algorithm>
#include <functional>
#include <random>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/engine/collectives/made_up_packages.h"
#include "tests/harness/process_ranks.h"
#include "tests/harness/random_seed.h"

namespace paceline {
namespace {

using harness::run_ranks_ok;

// 0x38 to 0x3f as every byte: a modest positive number in every floating-point type.
void fill(std::span<std::byte> bytes, Dtype dtype, int seed) {
  std::uint64_t state = static_cast<std::uint64_t>(seed) + 1;
  for (auto& byte : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;  // Knuth's MMIX
    const auto high = static_cast<unsigned>(state >> 61);
    byte = std::byte(dtype == Dtype::kBool ? high & 1 : 0x38 | high);
  }
}

// What the ranks' sums are made of.
struct Sample {
  Dtype dtype = Dtype::kFloat32;
  ReduceOp reduce_op = ReduceOp::kSum;
  std::size_t count = 0;
};

// Where a rank's input and output lie in one test: two areas of memory of one kind.
class Memory {
 public:
  Memory(ProcessGroup& group, bool is_symmetric, std::size_t bytes)
      : bytes_(bytes), plain_(is_symmetric ? 0 : 2 * bytes) {
    if (is_symmetric) shared_ = group.allocate_symmetric(2 * bytes);
  }
  std::span<std::byte> take(int which, std::size_t bytes) {
    const auto begin = static_cast<std::size_t>(which) * bytes_;
    return {(plain_.empty() ? shared_.data() : plain_.data()) + begin, bytes};
  }

 private:
  const std::size_t bytes_;
  SymmetricBuffer shared_;
  std::vector<std::byte> plain_;
};

// The bytes that the operation leaves on this rank; empty where that is not promised.
using SumCall = std::function<std::vector<std::byte>(ProcessGroup&, Memory&, const Sample&)>;

std::vector<std::byte> copy_of(std::span<const std::byte> bytes) {
  return {bytes.begin(), bytes.end()};
}

std::vector<std::byte> all_reduce(ProcessGroup& group, Memory& memory, const Sample& sample,
                                  bool in_place, bool async) {
  const std::size_t bytes = sample.count * size_of(sample.dtype);
  const auto in = memory.take(0, bytes), out = in_place ? in : memory.take(1, bytes);
  fill(in, sample.dtype, group.rank());
  const Buffer input(in.data(), sample.count, sample.dtype);
  const Buffer output(out.data(), sample.count, sample.dtype);
  if (async) {
    group.all_reduce_async(output, sample.reduce_op)->wait();
  } else {
    group.all_reduce(input, output, sample.reduce_op);
  }
  return copy_of(out);
}

std::vector<std::byte> reduce(ProcessGroup& group, Memory& memory, const Sample& sample, int root) {
  const auto in = memory.take(0, sample.count * size_of(sample.dtype));
  fill(in, sample.dtype, group.rank());
  group.reduce(Buffer(in.data(), sample.count, sample.dtype), root, sample.reduce_op);
  return copy_of(in);  // unchanged on the others
}

// Of `count` in all, to ranks of as many as that gives.
std::vector<std::byte> reduce_scatter(ProcessGroup& group, Memory& memory, const Sample& sample,
                                      bool in_place) {
  const auto world = static_cast<std::size_t>(group.world_size());
  const std::size_t count = sample.count / world + 1;
  const std::size_t bytes = count * size_of(sample.dtype);
  const auto in = memory.take(0, world * bytes);
  const auto own = in.subspan(static_cast<std::size_t>(group.rank()) * bytes, bytes);
  const auto out = in_place ? own : memory.take(1, bytes);
  fill(in, sample.dtype, group.rank());
  group.reduce_scatter(ConstBuffer(in.data(), world * count, sample.dtype),
                       Buffer(out.data(), count, sample.dtype), sample.reduce_op);
  return copy_of(in_place ? in : out);  // the other blocks stay as they are
}

std::vector<std::pair<const char*, SumCall>> calls() {
  using G = ProcessGroup;
  using M = Memory;
  using S = Sample;
  return {
      {"all_reduce", [](G& g, M& m, const S& s) { return all_reduce(g, m, s, false, false); }},
      {"all_reduce in place",
       [](G& g, M& m, const S& s) { return all_reduce(g, m, s, true, false); }},
      {"all_reduce_async", [](G& g, M& m, const S& s) { return all_reduce(g, m, s, true, true); }},
      {"reduce to the first", [](G& g, M& m, const S& s) { return reduce(g, m, s, 0); }},
      {"reduce to the last",
       [](G& g, M& m, const S& s) { return reduce(g, m, s, g.world_size() - 1); }},
      {"reduce_scatter", [](G& g, M& m, const S& s) { return reduce_scatter(g, m, s, false); }},
      {"reduce_scatter in place",
       [](G& g, M& m, const S& s) { return reduce_scatter(g, m, s, true); }},
  };
}

struct Result {
  const char* call;
  Sample sample;
  std::vector<std::byte> bytes;
};
using Results = std::vector<Result>;

// Of each sample three of the calls, in turns; one after the other, so that the staging areas are
// used by all of them.
Results results_of(ProcessGroup& group, const std::vector<Sample>& samples) {
  static const auto kCalls = calls();
  Results results;
  const auto world = static_cast<std::size_t>(group.world_size());
  std::size_t most = 0;
  for (const Sample& sample : samples) {
    most = std::max(most, (sample.count + world) * size_of(sample.dtype));
  }
  for (const bool is_symmetric : {false, true}) {
    Memory memory(group, is_symmetric, (most + 63) / 64 * 64);
    std::size_t turn = is_symmetric ? 0 : 1;
    for (const Sample& sample : samples) {
      for (int i = 0; i < 3; ++i, ++turn) {
        const auto& [name, call] = kCalls[turn % kCalls.size()];
        results.push_back({name, sample, call(group, memory, sample)});
      }
    }
  }
  return results;
}

// Runs the same samples directly and by package.
void expect_same_bits(const std::vector<int>& packages, const std::vector<Sample>& samples) {
  const int world = static_cast<int>(packages.size());
  std::vector<Results> wanted(packages.size());
  run_ranks_ok(
      world,
      [&](ProcessGroup& group) {
        ASSERT_FALSE(is_by_package(group));
        wanted[static_cast<std::size_t>(group.rank())] = results_of(group, samples);
      },
      on_packages(packages, false));
  run_ranks_ok(
      world,
      [&](ProcessGroup& group) {
        ASSERT_TRUE(is_by_package(group));
        const Results results = results_of(group, samples);
        const Results& expected = wanted[static_cast<std::size_t>(group.rank())];
        ASSERT_EQ(results.size(), expected.size());
        for (std::size_t i = 0; i < results.size(); ++i) {
          const auto& [call, sample, bytes] = results[i];
          ASSERT_TRUE(bytes == expected[i].bytes)
              << "rank " << group.rank() << ", " << call << " of " << sample.count << " "
              << name_of(sample.dtype) << ", " << name_of(sample.reduce_op);
        }
      },
      on_packages(packages));
}

class ByPackageTest : public testing::TestWithParam<std::vector<int>> {};

TEST_P(ByPackageTest, has_the_bits_of_the_direct_way_in_every_type_and_operation) {
  std::vector<Sample> samples;
  for (const Dtype dtype : kAllDtypes) {
    for (int op = 0; op <= static_cast<int>(ReduceOp::kBitXor); ++op) {
      const auto reduce_op = static_cast<ReduceOp>(op);
      // A little more than what is tiny where ranks share cores.
      const std::size_t count = (33 << 10) / size_of(dtype) + 5;
      if (is_defined(reduce_op, dtype)) samples.push_back({dtype, reduce_op, count});
    }
  }
  expect_same_bits(GetParam(), samples);
}

// Below and above what a piece holds, with rests of every kind.
TEST_P(ByPackageTest, has_the_bits_of_the_direct_way_at_every_size) {
  std::vector<Sample> samples;
  for (const std::size_t count :
       {1u, 4097u, 8193u, 16'385u, 32'768u, 43'606u, 65'537u, 130'945u, 300'003u}) {
    samples.push_back({Dtype::kFloat32, ReduceOp::kSum, count});
    samples.push_back({Dtype::kBfloat16, ReduceOp::kMean, count});
  }
  expect_same_bits(GetParam(), samples);
}

TEST_P(ByPackageTest, has_the_bits_of_the_direct_way_between_processes) {
  const auto& packages = GetParam();
  const std::vector<Sample> samples = {{Dtype::kFloat32, ReduceOp::kSum, 200'001},
                                       {Dtype::kFloat16, ReduceOp::kSum, 100'001},
                                       {Dtype::kFloat64, ReduceOp::kMax, 50'001}};
  const auto digest = [&](bool by_package) {
    std::vector<std::string> digests;
    for (const auto& result : harness::run_process_ranks(
             static_cast<int>(packages.size()),
             [&](ProcessGroup& group) {
               EXPECT_EQ(is_by_package(group), by_package);
               std::string bytes;
               for (const auto& part : results_of(group, samples)) {
                 bytes.append(reinterpret_cast<const char*>(part.bytes.data()), part.bytes.size());
               }
               return std::to_string(std::hash<std::string>()(bytes));
             },
             {.adjust = on_packages(packages, by_package).adjust})) {
      EXPECT_FALSE(result.threw) << result.report;
      digests.push_back(result.report);
    }
    return digests;
  };
  EXPECT_EQ(digest(true), digest(false));
}

INSTANTIATE_TEST_SUITE_P(Layouts, ByPackageTest,
                         testing::Values(kTwoOfTwo, kTwoOfFour, kThreeOfTwo), [](const auto& info) {
                           return fmt::format("{}_ranks_on_{}", info.param.size(),
                                              info.param.back() + 1);
                         });

// Calls of other kinds and sizes in between use the same staging areas.
TEST(ByPackage, takes_turns_with_calls_of_every_other_kind) {
  run_ranks_ok(
      4,
      [](ProcessGroup& group) {
        const auto world = static_cast<std::size_t>(group.world_size());
        const auto shared = group.allocate_symmetric(700'000 * sizeof(std::int32_t));
        std::vector<std::int32_t> plain(700'000);
        std::mt19937 random(harness::random_seed());  // the same on every rank
        for (int call = 0; call < 200; ++call) {
          const std::size_t count = std::size_t{1} << (random() % 18);
          const auto all = random() % 2 == 0 ? shared.as<std::int32_t>() : std::span(plain);
          const auto data = all.first(count * (random() % 2) + count / 3 + 1);
          const auto mine = group.rank() + call;
          std::fill(data.begin(), data.end(), mine);
          const int others = 4 * call + 6;
          switch (random() % 4) {
            case 0:
              group.broadcast(data, 3);
              for (const auto value : data) ASSERT_EQ(value, 3 + call);
              break;
            case 1: {
              const auto gathered = all.last(world * data.size());
              std::vector<std::int32_t> own(data.begin(), data.end());
              group.all_gather(std::span(own), gathered);
              for (std::size_t i = 0; i < gathered.size(); ++i) {
                ASSERT_EQ(gathered[i], static_cast<int>(i / data.size()) + call);
              }
              break;
            }
            default:
              group.all_reduce(data);
              for (const auto value : data) ASSERT_EQ(value, others);
          }
        }
      },
      on_packages(kTwoOfTwo));
}

}  // namespace
}  // namespace paceline
