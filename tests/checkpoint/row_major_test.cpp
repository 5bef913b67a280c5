#include "paceline/checkpoint/row_major.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include <gtest/gtest.h>

namespace paceline {
namespace {

using Shape = std::vector<std::int64_t>;

// Strides of dense memory whose dimensions lie in this order, the innermost last.
Shape strides_for(const Shape& shape, const std::vector<std::size_t>& order) {
  Shape strides(shape.size());
  std::int64_t stride = 1;
  for (auto dim = order.rbegin(); dim != order.rend(); ++dim) {
    strides[*dim] = stride;
    stride *= shape[*dim];
  }
  return strides;
}

// Element i of the row-major tensor has the value i; found where it lies in memory.
template <class T>
std::vector<T> in_memory(const Shape& shape, const Shape& strides) {
  const auto count =
      std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies());
  std::vector<T> memory(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t rest = i;
    std::int64_t place = 0;
    for (std::size_t dim = shape.size(); dim-- > 0;) {
      place += rest % shape[dim] * strides[dim];
      rest /= shape[dim];
    }
    memory[static_cast<std::size_t>(place)] = static_cast<T>(i);
  }
  return memory;
}

template <class T>
void expect_row_major(const Shape& shape, const Shape& strides, std::size_t cut) {
  const auto memory = in_memory<T>(shape, strides);
  std::vector<T> whole(memory.size());
  std::vector<T> expected(memory.size());
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = static_cast<T>(i);
  const auto bytes = std::as_bytes(std::span(memory));
  // In two runs, the later one first.
  const std::size_t first = std::min(cut, memory.size()) * sizeof(T);
  auto* const to = reinterpret_cast<std::byte*>(whole.data());
  copy_to_row_major(to, bytes.subspan(first), first, sizeof(T), shape, strides);
  copy_to_row_major(to, bytes.first(first), 0, sizeof(T), shape, strides);
  EXPECT_EQ(whole, expected) << "cut at " << cut;
}

TEST(RowMajor, every_order_of_dimensions_in_runs_cut_anywhere) {
  const Shape shape = {3, 2, 4, 5};
  std::vector<std::size_t> order = {0, 1, 2, 3};
  do {
    const Shape strides = strides_for(shape, order);
    for (std::size_t cut = 0; cut <= 120; ++cut) expect_row_major<float>(shape, strides, cut);
  } while (std::ranges::next_permutation(order).found);
}

TEST(RowMajor, elements_of_every_size) {
  const Shape shape = {7, 3, 2};
  const Shape strides = strides_for(shape, {2, 0, 1});
  expect_row_major<std::uint8_t>(shape, strides, 5);
  expect_row_major<std::uint16_t>(shape, strides, 5);
  expect_row_major<std::uint32_t>(shape, strides, 5);
  expect_row_major<std::uint64_t>(shape, strides, 5);
}

TEST(RowMajor, the_stride_of_a_dimension_of_one_element_does_not_matter) {
  expect_row_major<float>({4, 1, 3}, {1, 999, 4}, 7);
  expect_row_major<float>({1, 1}, {5, 7}, 0);
  expect_row_major<float>({}, {}, 0);
}

TEST(RowMajor, a_tensor_without_elements_moves_nothing) {
  copy_to_row_major(nullptr, {}, 0, 4, {3, 0, 2}, {1, 6, 3});
}

}  // namespace
}  // namespace paceline
