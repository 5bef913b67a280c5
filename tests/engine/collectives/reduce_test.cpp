#include "paceline/engine/collectives/kernels/reduce.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "paceline/engine/collectives/op_traits.h"
#include "paceline/engine/core/dtype_traits.h"

namespace paceline {
namespace {

// The documented tree, in its simplest form.
float tree_sum(const std::vector<float>& values) {
  if (values.size() == 1) return values[0];
  const std::size_t left = std::bit_floor(values.size() - 1);
  return tree_sum({values.begin(), values.begin() + static_cast<std::ptrdiff_t>(left)}) +
         tree_sum({values.begin() + static_cast<std::ptrdiff_t>(left), values.end()});
}

template <class T>
std::vector<T> reduce_values(const std::vector<std::vector<T>>& inputs, Dtype dtype, ReduceOp op) {
  std::vector<const std::byte*> sources;
  for (const auto& input : inputs)
    sources.push_back(reinterpret_cast<const std::byte*>(input.data()));
  std::vector<T> out(inputs[0].size());
  reduce(sources, reinterpret_cast<std::byte*>(out.data()), out.size(), dtype, op);
  return out;
}

TEST(Reduce, sums_float32_in_the_documented_tree_bit_for_bit) {
  std::mt19937 random(7);
  std::uniform_real_distribution<float> uniform(-1e6f, 1e6f);
  for (const std::size_t ranks : {1, 2, 3, 4, 5, 7, 8, 9, 17}) {
    for (const std::size_t count : {1, 15, 16, 17, 1023, 1024, 1025, 5000}) {
      std::vector<std::vector<float>> inputs(ranks, std::vector<float>(count));
      for (auto& input : inputs) {
        for (auto& value : input) value = uniform(random);
      }
      const auto out = reduce_values(inputs, Dtype::kFloat32, ReduceOp::kSum);
      for (std::size_t i = 0; i < count; ++i) {
        std::vector<float> column;
        for (const auto& input : inputs) column.push_back(input[i]);
        ASSERT_EQ(std::bit_cast<std::uint32_t>(out[i]),
                  std::bit_cast<std::uint32_t>(tree_sum(column)));
      }
    }
  }
}

std::vector<std::vector<float>> random_shards(std::size_t count) {
  std::vector<std::vector<float>> shards(count, std::vector<float>(100));
  std::mt19937 random(3);
  for (auto& shard : shards) {
    for (auto& value : shard) value = std::uniform_real_distribution<float>(-1, 1)(random);
  }
  return shards;
}

// The result if each rank first adds up `shards_of_each` of the shards.
std::vector<float> sum_of_blocks(const std::vector<std::vector<float>>& shards,
                                 std::size_t shards_of_each) {
  std::vector<std::vector<float>> blocks;
  for (std::size_t i = 0; i < shards.size(); i += shards_of_each) {
    const auto begin = shards.begin() + static_cast<std::ptrdiff_t>(i);
    blocks.push_back(
        reduce_values<float>({begin, begin + static_cast<std::ptrdiff_t>(shards_of_each)},
                             Dtype::kFloat32, ReduceOp::kSum));
  }
  return reduce_values(blocks, Dtype::kFloat32, ReduceOp::kSum);
}

TEST(Reduce, any_number_of_ranks_with_a_power_of_two_of_shards_has_the_bits_of_all_shards) {
  for (const std::size_t ranks : {1, 2, 3, 4, 5, 6, 7, 8}) {
    for (const std::size_t shards_of_each : {1, 2, 4, 8}) {
      const auto shards = random_shards(ranks * shards_of_each);
      EXPECT_EQ(sum_of_blocks(shards, shards_of_each), sum_of_blocks(shards, 1))
          << ranks << " ranks of " << shards_of_each << " shards";
    }
  }
}

TEST(Reduce, ranks_with_another_number_of_shards_have_other_bits) {
  for (const auto& [ranks, shards_of_each] :
       {std::pair<std::size_t, std::size_t>{2, 3}, {4, 3}, {2, 5}, {2, 6}}) {
    const auto shards = random_shards(ranks * shards_of_each);
    EXPECT_NE(sum_of_blocks(shards, shards_of_each), sum_of_blocks(shards, 1))
        << ranks << " ranks of " << shards_of_each << " shards";
  }
}

float from_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

float from_float16(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  const float sign = (bits & 0x8000) != 0 ? -1.0f : 1.0f;
  if (exponent == 31) return mantissa != 0 ? std::nanf("") : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
  return sign * std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
}

// Every 16-bit pattern must survive: the maximum of a value and itself widens and narrows it.
TEST(Reduce, every_float16_and_bfloat16_value_survives_widening_and_narrowing) {
  std::vector<std::uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  const auto halves = reduce_values<std::uint16_t>({all, all}, Dtype::kFloat16, ReduceOp::kMax);
  const auto brains = reduce_values<std::uint16_t>({all, all}, Dtype::kBfloat16, ReduceOp::kMax);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (std::isnan(from_float16(all[i]))) {
      ASSERT_TRUE(std::isnan(from_float16(halves[i]))) << i;
    } else {
      ASSERT_EQ(halves[i], all[i]) << i;
    }
    if (std::isnan(from_bfloat16(all[i]))) {
      ASSERT_TRUE(std::isnan(from_bfloat16(brains[i]))) << i;
    } else {
      ASSERT_EQ(brains[i], all[i]) << i;
    }
  }
}

// Sums of three terms are exact in float32: the only rounding must be to the nearest value, ties to
// even.
TEST(Reduce, accumulates_16_bit_types_in_float32_and_rounds_once) {
  std::mt19937 random(11);
  std::vector<std::vector<std::uint16_t>> inputs(3, std::vector<std::uint16_t>(4096));
  for (auto& input : inputs) {
    for (auto& bits : input)
      bits = static_cast<std::uint16_t>((random() & 0x83ff) | ((random() % 8 + 11) << 10));
  }
  const auto out = reduce_values(inputs, Dtype::kFloat16, ReduceOp::kSum);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const float exact =
        (from_float16(inputs[0][i]) + from_float16(inputs[1][i])) + from_float16(inputs[2][i]);
    const float got = from_float16(out[i]);
    const float up = from_float16(static_cast<std::uint16_t>(out[i] + 1));
    const float down = from_float16(static_cast<std::uint16_t>(out[i] - 1));
    if ((out[i] & 0x7fff) == 0) continue;
    const float error = std::abs(got - exact);
    ASSERT_LE(error, std::abs(up - exact));
    ASSERT_LE(error, std::abs(down - exact));
    const bool tie = error == std::abs(up - exact) || error == std::abs(down - exact);
    if (tie && error > 0) {
      ASSERT_EQ(out[i] & 1, 0) << exact;
    }
  }
}

TEST(Reduce, nan_wins_in_min_and_max_at_every_position_and_rank) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const std::size_t ranks : {2, 3, 5}) {
    for (std::size_t who = 0; who < ranks; ++who) {
      for (const std::size_t count : {1, 16, 33}) {
        for (std::size_t at = 0; at < count; ++at) {
          std::vector<std::vector<float>> inputs(ranks, std::vector<float>(count, 1.0f));
          inputs[who][at] = nan;
          for (const auto op : {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kSum}) {
            const auto out = reduce_values(inputs, Dtype::kFloat32, op);
            for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(std::isnan(out[i]), i == at);
          }
        }
      }
    }
  }
}

template <class T>
void expect_integer_ops(Dtype dtype) {
  const std::vector<std::vector<T>> inputs = {
      {T(5), T(1), T(0)}, {T(3), T(2), T(0)}, {T(6), T(4), T(1)}};
  EXPECT_EQ(reduce_values(inputs, dtype, ReduceOp::kSum), (std::vector<T>{T(14), T(7), T(1)}));
  EXPECT_EQ(reduce_values(inputs, dtype, ReduceOp::kProduct), (std::vector<T>{T(90), T(8), T(0)}));
  EXPECT_EQ(reduce_values(inputs, dtype, ReduceOp::kMin), (std::vector<T>{T(3), T(1), T(0)}));
  EXPECT_EQ(reduce_values(inputs, dtype, ReduceOp::kMax), (std::vector<T>{T(6), T(4), T(1)}));
  EXPECT_EQ(reduce_values(inputs, dtype, ReduceOp::kBitAnd), (std::vector<T>{T(0), T(0), T(0)}));
  EXPECT_EQ(reduce_values(inputs, dtype, ReduceOp::kBitOr), (std::vector<T>{T(7), T(7), T(1)}));
  EXPECT_EQ(reduce_values(inputs, dtype, ReduceOp::kBitXor), (std::vector<T>{T(0), T(7), T(1)}));
}

TEST(Reduce, integers_of_every_size) {
  expect_integer_ops<std::int8_t>(Dtype::kInt8);
  expect_integer_ops<std::int16_t>(Dtype::kInt16);
  expect_integer_ops<std::int32_t>(Dtype::kInt32);
  expect_integer_ops<std::int64_t>(Dtype::kInt64);
  expect_integer_ops<std::uint8_t>(Dtype::kUint8);
}

TEST(Reduce, integer_overflow_wraps_around) {
  const std::int32_t most = std::numeric_limits<std::int32_t>::max();
  EXPECT_EQ(reduce_values<std::int32_t>({{most}, {1}}, Dtype::kInt32, ReduceOp::kSum)[0],
            std::numeric_limits<std::int32_t>::min());
  EXPECT_EQ(reduce_values<std::int16_t>({{32767}, {32767}}, Dtype::kInt16, ReduceOp::kProduct)[0],
            1);
}

TEST(Reduce, bools_are_or_for_sum_and_max_and_for_product_and_min) {
  const std::vector<std::vector<std::uint8_t>> inputs = {{0, 1, 1}, {0, 0, 1}};
  const std::vector<std::uint8_t> either = {0, 1, 1};
  const std::vector<std::uint8_t> both = {0, 0, 1};
  EXPECT_EQ(reduce_values(inputs, Dtype::kBool, ReduceOp::kSum), either);
  EXPECT_EQ(reduce_values(inputs, Dtype::kBool, ReduceOp::kMax), either);
  EXPECT_EQ(reduce_values(inputs, Dtype::kBool, ReduceOp::kProduct), both);
  EXPECT_EQ(reduce_values(inputs, Dtype::kBool, ReduceOp::kMin), both);
}

TEST(Reduce, mean_divides_the_sum) {
  EXPECT_EQ(reduce_values<float>({{1}, {2}, {6}}, Dtype::kFloat32, ReduceOp::kMean)[0], 3.0f);
  EXPECT_EQ(reduce_values<double>({{1}, {2}}, Dtype::kFloat64, ReduceOp::kMean)[0], 1.5);
}

TEST(Reduce, the_chosen_instruction_set_gives_the_portable_bits) {
  std::mt19937 random(5);
  for (const Dtype dtype : kAllDtypes) {
    std::vector<std::vector<std::byte>> inputs(5, std::vector<std::byte>(3001 * 8));
    std::vector<const std::byte*> sources;
    for (auto& input : inputs) {
      for (auto& byte : input)
        byte = static_cast<std::byte>(dtype == Dtype::kBool ? random() & 1 : random());
      sources.push_back(input.data());
    }
    for (const ReduceOp op :
         {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax,
          ReduceOp::kBitAnd, ReduceOp::kBitOr, ReduceOp::kBitXor}) {
      if (!is_defined(op, dtype)) continue;
      std::vector<std::byte> chosen(3001 * 8), plain(3001 * 8);
      reduce(sources, chosen.data(), 3001, dtype, op);
      std::vector<ReduceSource> list;
      for (const auto* source : sources) list.push_back({source});
      std::byte* const out = plain.data();
      portable::reduce(
          {list.data(), list.size(), &out, 1, 3001, dtype, op, ReduceResult::kFinal, list.size()});
      // The processor chooses which of two NaNs an addition passes on, so NaN payloads are not
      // compared.
      if (!is_floating_point(dtype)) {
        EXPECT_EQ(chosen, plain) << name_of(dtype) << " " << name_of(op);
      }
    }
  }
}

// Tests calls in place too: the first output is the first source, as in an all-reduce.
TEST(Reduce, several_outputs_get_the_bits_of_one) {
  std::mt19937 random(5);
  for (const Dtype dtype : kAllDtypes) {
    for (const std::size_t ranks : {1, 2, 3, 4}) {
      std::vector<std::vector<std::byte>> inputs(ranks, std::vector<std::byte>(2051 * 8));
      for (auto& input : inputs) {
        for (std::size_t i = 0; i < 2051; ++i) {
          const float value = static_cast<float>(static_cast<int>(random() % 7)) - 3;
          if (dtype == Dtype::kFloat32) {
            std::memcpy(&input[i * 4], &value, 4);
          } else {
            input[i] = static_cast<std::byte>(random() & 1);
          }
        }
      }
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMax}) {
        if (!is_defined(op, dtype)) continue;
        for (const std::size_t num_outs : {1, 2, 3, 5}) {
          auto work = inputs;
          std::vector<std::vector<std::byte>> more(5, std::vector<std::byte>(2051 * 8));
          std::vector<const std::byte*> sources;
          std::vector<std::byte*> outs = {work[0].data()};
          for (auto& input : work) sources.push_back(input.data());
          while (outs.size() < num_outs) outs.push_back(more[outs.size()].data());
          std::vector<std::byte> expected(2051 * 8);
          reduce(sources, expected.data(), 2051, dtype, op);
          reduce(sources, outs, 2051, dtype, op);
          const std::size_t bytes = 2051 * size_of(dtype);
          for (const std::byte* out : outs) {
            EXPECT_EQ(std::memcmp(out, expected.data(), bytes), 0)
                << name_of(dtype) << " " << ranks << " ranks, " << num_outs << " outputs";
          }
        }
      }
    }
  }
}

// The mean of two contributions is computed as a multiplication by 0.5.
TEST(Reduce, the_mean_of_two_has_the_bits_of_a_division) {
  std::mt19937 random(9);
  std::vector<float> a(5000), b(5000);
  for (auto* values : {&a, &b}) {
    for (float& value : *values)
      value = std::bit_cast<float>(static_cast<std::uint32_t>(random()) & 0xbfffffffu);
  }
  a[0] = std::numeric_limits<float>::denorm_min();
  const auto mean = reduce_values<float>({a, b}, Dtype::kFloat32, ReduceOp::kMean);
  for (std::size_t i = 0; i < mean.size(); ++i) {
    const float expected = (a[i] + b[i]) / 2.0f;
    ASSERT_EQ(std::bit_cast<std::uint32_t>(mean[i]), std::bit_cast<std::uint32_t>(expected)) << i;
  }
}

}  // namespace
}  // namespace paceline
