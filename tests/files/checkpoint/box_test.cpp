#include "paceline/files/checkpoint/box.h"

#include <numeric>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "tests/harness/random_seed.h"

namespace paceline {
namespace {

// The elements of the tensor that a box contains, by their row-major numbers.
std::set<std::int64_t> elements_of(const Box& box, const std::vector<std::int64_t>& shape) {
  std::set<std::int64_t> numbers;
  for_common_runs(box, whole_box(shape), box,
                  [&](std::int64_t first, std::int64_t, std::int64_t count) {
                    for (std::int64_t i = 0; i < count; ++i) numbers.insert(first + i);
                  });
  return numbers;
}

std::vector<std::int64_t> random_shape(std::mt19937& random) {
  std::vector<std::int64_t> shape(random() % 5);
  for (auto& size : shape) size = 1 + random() % 5;
  return shape;
}

Box random_box(const std::vector<std::int64_t>& shape, std::mt19937& random) {
  Box box = whole_box(shape);
  for (std::size_t i = 0; i < shape.size(); ++i) {
    box.offsets[i] = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(shape[i]));
    box.sizes[i] = 1 + static_cast<std::int64_t>(
                           random() % static_cast<std::uint64_t>(shape[i] - box.offsets[i]));
  }
  return box;
}

TEST(Box, a_run_of_elements_is_its_boxes_and_there_are_few) {
  std::mt19937 random(harness::random_seed());
  for (int round = 0; round < 2000; ++round) {
    const auto shape = random_shape(random);
    const std::int64_t all = num_elements(shape);
    const auto first = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(all));
    const auto count =
        static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(all - first + 1));
    std::set<std::int64_t> found;
    const auto boxes = boxes_of_run(shape, first, count);
    for (const Box& box : boxes) {
      const auto own = elements_of(box, shape);
      EXPECT_EQ(own.size(), static_cast<std::size_t>(num_elements(box)));
      found.insert(own.begin(), own.end());
    }
    std::set<std::int64_t> wanted;
    for (std::int64_t i = 0; i < count; ++i) wanted.insert(first + i);
    ASSERT_EQ(found, wanted) << first << ' ' << count;
    EXPECT_LE(boxes.size(), std::max<std::size_t>(1, 2 * shape.size()));
  }
}

TEST(Box, what_is_not_in_another_one_is_boxes_apart) {
  std::mt19937 random(harness::random_seed());
  for (int round = 0; round < 2000; ++round) {
    const auto shape = random_shape(random);
    const Box box = random_box(shape, random), taken = random_box(shape, random);
    auto wanted = elements_of(box, shape);
    for (const auto number : elements_of(taken, shape)) wanted.erase(number);
    std::set<std::int64_t> found;
    std::size_t sum = 0;
    for (const Box& rest : without(box, taken)) {
      const auto own = elements_of(rest, shape);
      found.insert(own.begin(), own.end());
      sum += own.size();
    }
    EXPECT_EQ(found, wanted);
    EXPECT_EQ(sum, wanted.size());
    const auto common = common_part(box, taken);
    EXPECT_EQ(common ? static_cast<std::size_t>(num_elements(*common)) : 0,
              static_cast<std::size_t>(num_elements(box)) - wanted.size());
  }
}

template <class Element>
void copy_boxes(std::mt19937& random) {
  for (int round = 0; round < 300; ++round) {
    const auto shape = random_shape(random);
    const Box box = random_box(shape, random);
    // The whole tensor, in memory with its dimensions in another order.
    std::vector<std::size_t> order(shape.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::shuffle(order, random);
    std::vector<std::int64_t> strides(shape.size());
    std::int64_t stride = 1;
    for (const std::size_t dim : order) {
      strides[dim] = stride;
      stride *= shape[dim];
    }
    std::vector<Element> memory(static_cast<std::size_t>(stride));
    for (std::int64_t number = 0; number < stride; ++number) {
      std::int64_t place = 0, rest = number;
      for (std::size_t dim = 0; dim < shape.size(); ++dim) {
        const auto inner = row_major_strides(shape)[dim];
        place += rest / inner * strides[dim];
        rest %= inner;
      }
      memory[static_cast<std::size_t>(place)] = static_cast<Element>(number);
    }
    std::vector<Element> copied(static_cast<std::size_t>(num_elements(box)));
    const StridedPointer whole{reinterpret_cast<std::byte*>(memory.data()), strides};
    const StridedPointer part = place_of_part(whole, whole_box(shape), box, sizeof(Element));
    const StridedPointer dense{reinterpret_cast<std::byte*>(copied.data()),
                               row_major_strides(box.sizes)};
    copy_elements(dense, part, box.sizes, sizeof(Element));
    std::size_t i = 0;
    for (const std::int64_t number : elements_of(box, shape))
      ASSERT_EQ(copied[i++], static_cast<Element>(number));
    // Copies the part back.
    std::vector<Element> before = memory;
    std::ranges::fill(memory, Element{});
    copy_elements(part, dense, box.sizes, sizeof(Element));
    std::size_t same = 0;
    for (std::size_t n = 0; n < memory.size(); ++n) same += memory[n] == before[n] ? 1 : 0;
    EXPECT_GE(same, copied.size());
  }
}

TEST(Box, is_copied_from_any_order_of_dimensions_and_back) {
  std::mt19937 random(harness::random_seed());
  copy_boxes<std::uint8_t>(random);
  copy_boxes<std::uint16_t>(random);
  copy_boxes<std::uint32_t>(random);
  copy_boxes<std::uint64_t>(random);
}

// channels_last: rows, columns, channels.
TEST(Box, a_run_in_the_order_of_memory_is_boxes_of_the_tensor) {
  const std::vector<std::int64_t> shape = {2, 3, 4, 5}, strides = {60, 1, 15, 3};
  const auto boxes = boxes_of_run(shape, strides, 15, 30);
  ASSERT_EQ(boxes.size(), 1U);
  EXPECT_EQ(boxes[0], (Box{{0, 0, 1, 0}, {1, 3, 2, 5}}));
}

}  // namespace
}  // namespace paceline
