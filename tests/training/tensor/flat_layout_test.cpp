#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "paceline/training/tensor/tensor_view.h"

namespace paceline {
namespace {

TEST(FlatLayout, every_tensor_begins_on_a_cache_line) {
  FlatLayout layout(at::kDouble);
  EXPECT_EQ(layout.append(3), 0);
  EXPECT_EQ(layout.append(8), 8);
  EXPECT_EQ(layout.append(9), 16);
  EXPECT_EQ(layout.count(), 32);
  EXPECT_EQ(layout.offset(1), 8);
}

TEST(FlatLayout, parts_are_equal_and_made_of_whole_blocks) {
  const FlatLayout layout({at::zeros({5}), at::zeros({2, 17})}, 3);
  EXPECT_EQ(layout.offset(1), 16);
  EXPECT_EQ(layout.block(), 64);
  EXPECT_EQ(layout.count(), 192);  // 64 elements, rounded up to a multiple of three blocks
  EXPECT_EQ(layout.part_count(), 64);
  for (const int parts : {1, 2, 3, 8}) {
    const FlatLayout large({at::zeros({70'000})}, parts);
    EXPECT_EQ(large.block(), 1024);
    EXPECT_EQ(large.part_count() % 1024, 0);
  }
}

// With this property sums over a tensor's blocks do not depend on the array or on the division into
// parts.
TEST(FlatLayout, a_tensors_own_blocks_lie_within_blocks_of_the_array) {
  const std::vector<std::int64_t> sizes = {3000, 5, 700, 400, 1024, 1, 2049};
  std::vector<at::Tensor> tensors;
  for (const std::int64_t size : sizes) tensors.push_back(at::zeros({size}));
  const FlatLayout layout(tensors, 3, FlatLayout::kBlock);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    for (std::int64_t begin = 0; begin < sizes[i]; begin += layout.block()) {
      const std::int64_t last = std::min(begin + layout.block(), sizes[i]) - 1;
      EXPECT_EQ((layout.offset(i) + begin) / 1024, (layout.offset(i) + last) / 1024) << i;
    }
    if (i > 0) {
      EXPECT_GE(layout.offset(i), layout.offset(i - 1) + sizes[i - 1]);
    }
  }
  EXPECT_EQ(layout.part_count() % 1024, 0);
  EXPECT_EQ(layout.count(), 12 * 1024);
}

TEST(FlatLayout, the_layout_of_no_tensors_has_no_elements) {
  EXPECT_EQ(FlatLayout({}, 4).count(), 0);
}

TEST(FlatLayout, a_place_has_the_strides_of_its_tensor_and_writes_into_the_array) {
  const at::Tensor first = at::zeros({3}, at::kDouble);
  const at::Tensor second = at::arange(6, at::kDouble).reshape({2, 3}).t();
  const FlatLayout layout({first, second}, 1);
  const at::Tensor flat = at::zeros({layout.count()}, layout.type());
  const at::Tensor place = layout.place(flat, 1, second);
  EXPECT_EQ(place.strides(), second.strides());
  place.copy_(second);
  EXPECT_TRUE(flat.narrow(0, layout.offset(1), 6).equal(at::arange(6, at::kDouble)));
}

}  // namespace
}  // namespace paceline
