#pragma once

// The parts of the same tensors that each rank of a test holds, and a check that it gets them back.

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "paceline/files/checkpoint/box_file.h"
#include "paceline/files/checkpoint/box_plan.h"

namespace paceline::testing {

struct Tensor {
  std::string name;
  std::vector<std::int64_t> shape;
  bool is_divided;  // among the ranks, by elements; otherwise each rank has the whole tensor
};
inline const std::vector<Tensor> kTensors = {
    {"divided", {37, 11, 5}, true}, {"empty", {0, 4}, true},
    {"large", {513, 1024}, true},   {"one", {1}, true},
    {"replica", {64, 33}, false},   {"scalar", {}, false}};

inline float value_of(const Tensor& tensor, std::int64_t step, std::int64_t element) {
  return static_cast<float>(step * 7 + static_cast<std::int64_t>(tensor.name.size())) +
         static_cast<float>(element) / 8;
}

// One rank's part of the tensors, in memory with the dimensions in reverse order.
struct Held {
  Held(ProcessGroup& group, std::int64_t step) {
    for (const Tensor& tensor : kTensors) {
      const std::int64_t all = num_elements(tensor.shape);
      const std::int64_t n = group.world_size(), r = group.rank();
      const std::int64_t first = tensor.is_divided ? all * r / n : 0;
      const std::int64_t last = tensor.is_divided ? all * (r + 1) / n : all;
      auto& values = memory.emplace_back(static_cast<std::size_t>(all));
      std::vector<std::int64_t> strides(tensor.shape.size());
      std::int64_t stride = 1;
      for (std::size_t i = 0; i < strides.size(); ++i) {
        strides[i] = stride;
        stride *= tensor.shape[i];
      }
      const Box whole = whole_box(tensor.shape);
      const StridedPointer place{reinterpret_cast<std::byte*>(values.data()), strides};
      std::vector<float> row_major(values.size());
      for (std::int64_t i = 0; i < all; ++i)
        row_major[static_cast<std::size_t>(i)] = value_of(tensor, step, i);
      copy_elements(
          place, {reinterpret_cast<std::byte*>(row_major.data()), row_major_strides(tensor.shape)},
          tensor.shape, sizeof(float));
      if (all == 0) boxes.push_back({{tensor.name, Dtype::kFloat32, tensor.shape, whole}, place});
      for (const Box& box : boxes_of_run(tensor.shape, first, last - first)) {
        boxes.push_back({{tensor.name, Dtype::kFloat32, tensor.shape, box},
                         place_of_part(place, whole, box, sizeof(float))});
      }
    }
  }
  std::vector<std::vector<float>> memory;
  std::vector<HeldMemory> boxes;
};

// Expects that `read` returns the elements of that step: all of a replicated tensor, and of a
// divided one the part that this rank has after a restart with the group's number of ranks.
inline void expect_parts(ProcessGroup& group, std::int64_t step,
                         const std::function<void(const std::vector<WantedBox>&)>& read) {
  std::vector<std::vector<float>> found;
  std::vector<WantedBox> wanted;
  std::vector<std::pair<const Tensor*, Box>> expected;
  for (const Tensor& tensor : kTensors) {
    const std::int64_t all = num_elements(tensor.shape);
    const std::int64_t n = group.world_size(), r = group.rank();
    const std::int64_t first = tensor.is_divided ? all * r / n : 0;
    const std::int64_t last = tensor.is_divided ? all * (r + 1) / n : all;
    for (const Box& box : boxes_of_run(tensor.shape, first, last - first)) {
      found.emplace_back(static_cast<std::size_t>(num_elements(box)));
      wanted.push_back({tensor.name, box, reinterpret_cast<std::byte*>(found.back().data())});
      expected.emplace_back(&tensor, box);
    }
  }
  read(wanted);
  for (std::size_t i = 0; i < found.size(); ++i) {
    const auto& [tensor, box] = expected[i];
    for_common_runs(box, whole_box(tensor->shape), box,
                    [&](std::int64_t element, std::int64_t at, std::int64_t count) {
                      for (std::int64_t k = 0; k < count; ++k) {
                        ASSERT_EQ(found[i][static_cast<std::size_t>(at + k)],
                                  value_of(*tensor, step, element + k))
                            << tensor->name;
                      }
                    });
  }
}

}  // namespace paceline::testing
