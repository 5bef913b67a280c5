// Every instruction set's reduce kernel is bitwise equal to the portable one, also in the cases in
// which conversions go wrong: ties, subnormal numbers, overflow and NaN.

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "paceline/engine/collectives/kernels/reduce.h"
#include "paceline/engine/collectives/op_traits.h"

namespace paceline {
namespace {

constexpr std::array kHalves = {Dtype::kFloat16, Dtype::kBfloat16};
constexpr std::array kOps = {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kProduct, ReduceOp::kMin,
                             ReduceOp::kMax};
using Numbers = std::vector<std::uint16_t>;

bool is_nan(std::uint16_t bits, Dtype dtype) {
  return (bits & 0x7fff) > (dtype == Dtype::kFloat16 ? 0x7c00 : 0x7f80);
}
bool is_nan(std::uint32_t bits, Dtype) { return (bits & 0x7fffffff) > 0x7f800000; }

Numbers all_numbers() {
  Numbers all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  return all;
}

// Zeros, limits of subnormal and normal numbers, one, infinities and NaNs of both types, then
// random values.
Numbers sample_of_numbers() {
  Numbers sample = {0x0000, 0x8000, 0x0001, 0x8001, 0x007f, 0x0080, 0x8080, 0x03ff,
                    0x0400, 0x8400, 0x3c00, 0xbc00, 0x3f80, 0xbf80, 0x7bff, 0xfbff,
                    0x7c00, 0xfc00, 0x7c01, 0xfdff, 0x7e00, 0xfe55, 0x7f7f, 0xff7f,
                    0x7f80, 0xff80, 0x7f81, 0xff81, 0x7fc0, 0xffff, 0x1400, 0x3800};
  std::mt19937 random(17);
  while (sample.size() < 96) sample.push_back(static_cast<std::uint16_t>(random()));
  return sample;
}

const std::byte* bytes_of(const auto& values) {
  return reinterpret_cast<const std::byte*>(values.data());
}

// `Result` is the type of an element of the result: 32 bits for a partial sum.
template <class Result>
std::vector<Result> run(const ReduceVariant& variant, const std::vector<ReduceSource>& sources,
                        std::size_t count, Dtype dtype, ReduceOp op, std::size_t num_outs = 1) {
  std::size_t ranks = 0;
  for (const auto& source : sources) ranks += source.num_ranks;
  std::vector<std::vector<Result>> results(num_outs, std::vector<Result>(count));
  std::vector<std::byte*> outs;
  for (auto& result : results) outs.push_back(reinterpret_cast<std::byte*>(result.data()));
  const auto kind = sizeof(Result) == 4 ? ReduceResult::kPartial : ReduceResult::kFinal;
  variant.reduce(
      {sources.data(), sources.size(), outs.data(), num_outs, count, dtype, op, kind, ranks});
  for (const auto& result : results) EXPECT_EQ(result, results[0]);
  return results[0];
}

const ReduceVariant kPortable = {"portable", &portable::reduce};

// The name of a failing case in messages.
std::string name_of_case(const ReduceVariant& variant, Dtype dtype, ReduceOp op) {
  return std::string(variant.name) + " " + std::string(name_of(dtype)) + " " +
         std::string(name_of(op));
}

// If `is_either` holds, two NaNs are added: the processor chooses which one is passed on.
template <class Result, class Choice>
void expect_same(const std::vector<Result>& got, const std::vector<Result>& expected, Dtype dtype,
                 const std::string& what, Choice is_either) {
  if (got == expected) return;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] == expected[i]) continue;
    if (is_either(i) && is_nan(got[i], dtype) && is_nan(expected[i], dtype)) continue;
    FAIL() << what << ": element " << i << " is " << std::hex << got[i] << ", portable "
           << expected[i];
  }
}

TEST(ReduceBits, every_kernel_combines_every_16_bit_number_as_the_portable_one_does) {
  const Numbers all = all_numbers();
  for (const std::uint16_t other : sample_of_numbers()) {
    const Numbers others(all.size(), other);
    for (const Dtype dtype : kHalves) {
      const bool is_other_nan = is_nan(other, dtype);
      // Not a multiple of any vector length, so that the last elements are converted one at a time.
      const std::size_t count = all.size() - 3;
      const std::vector<ReduceSource> sources = {{bytes_of(all) + 6}, {bytes_of(others)}};
      for (const ReduceOp op : kOps) {
        const bool has_choice = is_other_nan && op != ReduceOp::kMin && op != ReduceOp::kMax;
        const auto is_either = [&](std::size_t i) {
          return has_choice && is_nan(all[i + 3], dtype);
        };
        const auto final = run<std::uint16_t>(kPortable, sources, count, dtype, op);
        const auto partial = run<std::uint32_t>(kPortable, sources, count, dtype, op);
        for (const ReduceVariant& variant : reduce_variants()) {
          const auto what = name_of_case(variant, dtype, op) + " with " + std::to_string(other);
          for (const std::size_t outs : {1, 2, 3}) {
            expect_same(run<std::uint16_t>(variant, sources, count, dtype, op, outs), final, dtype,
                        what, is_either);
          }
          expect_same(run<std::uint32_t>(variant, sources, count, dtype, op), partial, dtype,
                      what + ", partial", is_either);
        }
        if (HasFatalFailure()) return;
      }
    }
  }
}

// All upper halves, that is all bfloat16 numbers, with lower halves around every tie of both types.
TEST(ReduceBits, every_kernel_rounds_a_float32_sum_as_the_portable_one_does) {
  std::vector<std::uint32_t> sums;
  for (const std::uint32_t low : {0x0u, 0x1u, 0xfffu, 0x1000u, 0x1001u, 0x1fffu, 0x2000u, 0x3000u,
                                  0x7000u, 0x7fffu, 0x8000u, 0x8001u, 0xf000u, 0xffffu}) {
    for (std::uint32_t high = 0; high < 65536; ++high) sums.push_back(high << 16 | low);
  }
  sums.resize(sums.size() - 5);
  for (const Dtype dtype : kHalves) {
    const std::vector<ReduceSource> sources = {{bytes_of(sums), 2, true}};
    const auto expected =
        run<std::uint16_t>(kPortable, sources, sums.size(), dtype, ReduceOp::kSum);
    for (const ReduceVariant& variant : reduce_variants()) {
      expect_same(run<std::uint16_t>(variant, sources, sums.size(), dtype, ReduceOp::kSum),
                  expected, dtype, name_of_case(variant, dtype, ReduceOp::kSum),
                  [](std::size_t) { return false; });
    }
  }
}

// Contributions and partial sums in every combination that trees of up to nine ranks have.
TEST(ReduceBits, every_kernel_adds_up_many_sources_as_the_portable_one_does) {
  std::mt19937 random(23);
  constexpr std::size_t kCount = 3001;
  std::vector<Numbers> numbers(9, Numbers(kCount));
  std::vector<std::vector<std::uint32_t>> sums(9, std::vector<std::uint32_t>(kCount));
  for (auto& list : numbers) {
    for (auto& number : list) number = static_cast<std::uint16_t>(random());
  }
  for (auto& list : sums) {
    for (auto& sum : list) sum = static_cast<std::uint32_t>(random());
  }
  // The number of ranks in each source; 1 is a contribution.
  for (const std::vector<std::size_t>& widths :
       std::vector<std::vector<std::size_t>>{{1},
                                             {2},
                                             {1, 1},
                                             {2, 1},
                                             {2, 2},
                                             {4, 1},
                                             {4, 4},
                                             {1, 1, 1},
                                             {2, 1, 1},
                                             {1, 1, 2},
                                             {1, 1, 1, 1},
                                             {4, 2, 1},
                                             {1, 1, 1, 1, 1},
                                             {8, 1},
                                             {1, 1, 1, 1, 1, 1, 1, 1, 1}}) {
    std::vector<ReduceSource> sources;
    std::string shape;
    for (const std::size_t width : widths) {
      const auto* data =
          width > 1 ? bytes_of(sums[sources.size()]) : bytes_of(numbers[sources.size()]);
      sources.push_back({data, width, width > 1});
      shape += " " + std::to_string(width);
    }
    const auto may_be_several = [](std::size_t) { return true; };
    for (const Dtype dtype : kHalves) {
      for (const ReduceOp op : kOps) {
        const auto final = run<std::uint16_t>(kPortable, sources, kCount, dtype, op);
        const auto partial = run<std::uint32_t>(kPortable, sources, kCount, dtype, op);
        for (const ReduceVariant& variant : reduce_variants()) {
          const auto what = name_of_case(variant, dtype, op) + " of" + shape;
          for (const std::size_t outs : {1, 2, 3}) {
            expect_same(run<std::uint16_t>(variant, sources, kCount, dtype, op, outs), final, dtype,
                        what, may_be_several);
          }
          expect_same(run<std::uint32_t>(variant, sources, kCount, dtype, op), partial, dtype,
                      what + ", partial", may_be_several);
        }
      }
    }
  }
}

// The rules themselves: the result is a quiet NaN with its sign; bfloat16 keeps as much of the
// payload as fits.
TEST(ReduceBits, one_nan_comes_out_quiet_and_with_its_sign) {
  const Numbers halves = {0x7c01, 0xfc01, 0x7e55, 0xffff};
  const Numbers brains = {0x7f81, 0xff81, 0x7fd5, 0xffff};
  const Numbers ones(halves.size(), 0x3c00);
  for (const ReduceVariant& variant : reduce_variants()) {
    for (const ReduceOp op : kOps) {
      EXPECT_EQ(run<std::uint16_t>(variant, {{bytes_of(halves)}, {bytes_of(ones)}}, 4,
                                   Dtype::kFloat16, op),
                (Numbers{0x7e00, 0xfe00, 0x7e00, 0xfe00}))
          << name_of_case(variant, Dtype::kFloat16, op);
      EXPECT_EQ(run<std::uint16_t>(variant, {{bytes_of(ones)}, {bytes_of(brains)}}, 4,
                                   Dtype::kBfloat16, op),
                (Numbers{0x7fc1, 0xffc1, 0x7fd5, 0xffff}))
          << name_of_case(variant, Dtype::kBfloat16, op);
    }
  }
}

// In place: each output may also be a source.
TEST(ReduceBits, an_output_may_be_any_source) {
  std::mt19937 random(29);
  for (const ReduceVariant& variant : reduce_variants()) {
    for (const Dtype dtype : kHalves) {
      for (const std::size_t ranks : {1, 2, 3, 4, 5}) {
        std::vector<Numbers> inputs(ranks, Numbers(2051));
        for (auto& input : inputs) {
          for (auto& number : input) number = static_cast<std::uint16_t>(random() & 0xbfff);
        }
        std::vector<ReduceSource> sources;
        for (auto& input : inputs) sources.push_back({bytes_of(input)});
        const auto expected = run<std::uint16_t>(variant, sources, 2051, dtype, ReduceOp::kSum);
        for (std::size_t first = 0; first < ranks; ++first) {
          auto work = inputs;
          std::vector<std::byte*> outs;
          for (std::size_t i = 0; i < ranks; ++i) {
            sources[i].data = bytes_of(work[i]);
            outs.push_back(reinterpret_cast<std::byte*>(work[(first + i) % ranks].data()));
          }
          variant.reduce({sources.data(), ranks, outs.data(), ranks, 2051, dtype, ReduceOp::kSum,
                          ReduceResult::kFinal, ranks});
          for (const auto& result : work) EXPECT_EQ(result, expected) << variant.name;
        }
      }
    }
  }
}

}  // namespace
}  // namespace paceline
