#include <bit>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "paceline/training/parallel/reducer/vectorised_loops.h"

namespace paceline {
namespace {

// Numbers between -1 and 1 that need all bits of a float.
std::vector<float> numbers(std::int64_t count, std::uint32_t state) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    values.push_back(static_cast<float>(static_cast<std::int32_t>(state)) / 2147483648.0f);
  }
  return values;
}

std::uint32_t hash_of(const std::vector<float>& values) {
  std::uint32_t hash = 2166136261u;
  for (const float value : values) hash = (hash ^ std::bit_cast<std::uint32_t>(value)) * 16777619u;
  return hash;
}

double product_of_columns(const std::vector<float>& matrix, std::int64_t columns, std::int64_t a,
                          std::int64_t b) {
  double sum = 0;
  const auto rows = static_cast<std::int64_t>(matrix.size()) / columns;
  for (std::int64_t row = 0; row < rows; ++row) {
    sum += static_cast<double>(matrix[static_cast<std::size_t>(row * columns + a)]) *
           static_cast<double>(matrix[static_cast<std::size_t>(row * columns + b)]);
  }
  return sum;
}

TEST(LowRank, columns_become_orthonormal) {
  for (const std::int64_t rows : {1, 5, 8, 100, 1031}) {
    for (const std::int64_t columns : {1, 2, 4, 9}) {
      if (columns > rows) continue;
      auto matrix = numbers(rows * columns, 7);
      orthogonalize(matrix.data(), rows, columns, 0);
      for (std::int64_t a = 0; a < columns; ++a) {
        for (std::int64_t b = 0; b <= a; ++b)
          EXPECT_NEAR(product_of_columns(matrix, columns, a, b), a == b ? 1 : 0, 1e-6)
              << rows << " x " << columns;
      }
    }
  }
}

// Only the second pass over each column keeps the third one orthogonal.
TEST(LowRank, columns_that_are_nearly_parallel_become_orthonormal) {
  constexpr std::int64_t kRows = 200;
  const auto noise = numbers(kRows * 3, 5);
  std::vector<float> matrix;
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::size_t i = 0; i < 3; ++i) {
      matrix.push_back(1 + static_cast<float>(row) / 100 +
                       1e-4f * noise[static_cast<std::size_t>(row) * 3 + i]);
    }
  }
  orthogonalize(matrix.data(), kRows, 3, 0);
  EXPECT_NEAR(product_of_columns(matrix, 3, 0, 2), 0, 1e-6);
  EXPECT_NEAR(product_of_columns(matrix, 3, 1, 2), 0, 1e-6);
}

TEST(LowRank, a_column_of_zeros_stays_one_and_epsilon_makes_columns_shorter) {
  std::vector<float> matrix = {3, 0, 4, 0};
  orthogonalize(matrix.data(), 2, 2, 0);
  EXPECT_EQ(matrix, (std::vector<float>{0.6f, 0, 0.8f, 0}));
  std::vector<float> column = {3, 4};
  orthogonalize(column.data(), 2, 1, 5);
  EXPECT_EQ(column, (std::vector<float>{0.3f, 0.4f}));
}

TEST(LowRank, factors_multiply_to_their_product) {
  const std::vector<float> p = {1, 2, 3, 4, 5, 6};  // 3 x 2
  const std::vector<float> q = {1, 10, 2, 20};      // 2 x 2
  std::vector<float> product(6);
  multiply_factors(p.data(), q.data(), 3, 2, 2, product.data());
  EXPECT_EQ(product, (std::vector<float>{21, 42, 43, 86, 65, 130}));
}

// The expected values were computed on one processor; every other processor must compute the same.
TEST(LowRank, has_the_same_bits_on_every_processor) {
  auto p = numbers(301 * 5, 1);
  const auto q = numbers(77 * 5, 2);
  orthogonalize(p.data(), 301, 5, 0);
  std::vector<float> product(301 * 77);
  multiply_factors(p.data(), q.data(), 301, 77, 5, product.data());
  EXPECT_EQ(hash_of(p), 3563206039u);
  EXPECT_EQ(hash_of(product), 2081826812u);
}

}  // namespace
}  // namespace paceline
