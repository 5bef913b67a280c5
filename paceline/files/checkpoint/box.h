#pragma once

// A part of a tensor: offsets and sizes, one pair a dimension. Ranks hold boxes of tensors, and
// files have boxes of them, so that neither the number of ranks nor their division of the model
// shows in a checkpoint. A box of a scalar has no dimensions and one element.
//
// Thread safety: pure functions.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace paceline {

struct Box {
  std::vector<std::int64_t> offsets;
  std::vector<std::int64_t> sizes;

  auto operator<=>(const Box&) const = default;
};

// "[0:3, 4:8]", as Python writes it.
std::string to_string(const Box& box);

std::int64_t num_elements(std::span<const std::int64_t> sizes);
inline std::int64_t num_elements(const Box& box) { return num_elements(box.sizes); }

// All of a tensor.
Box whole_box(const std::vector<std::int64_t>& shape);

// Nothing when they have no element in common. Requires: boxes of one tensor.
std::optional<Box> common_part(const Box& a, const Box& b);

// What of `box` is not in `taken`, as boxes apart from each other.
std::vector<Box> without(const Box& box, const Box& taken);

// Elements [first, first + count) of a tensor in row-major order: at most two boxes a dimension.
std::vector<Box> boxes_of_run(const std::vector<std::int64_t>& shape, std::int64_t first,
                              std::int64_t count);
// The same of a tensor whose elements lie in memory in the order that `strides` say. Requires:
// memory without gaps and overlaps.
std::vector<Box> boxes_of_run(const std::vector<std::int64_t>& shape,
                              std::span<const std::int64_t> strides, std::int64_t first,
                              std::int64_t count);

// In elements.
std::vector<std::int64_t> row_major_strides(const std::vector<std::int64_t>& sizes);

// Where the elements of a box lie, and how far apart, in elements.
struct BoxPlace {
  std::byte* data = nullptr;  // of its first element
  std::vector<std::int64_t> strides;
};

// The place of a part. Requires: `part` lies within `box`.
BoxPlace place_of_part(const BoxPlace& place, const Box& box, const Box& part, std::size_t element);

// Copies elements of `element` bytes (1, 2, 4 or 8) from one order to another. Requires: places of
// boxes of these sizes, which do not overlap.
void copy_elements(const BoxPlace& to, const BoxPlace& from, std::span<const std::int64_t> sizes,
                   std::size_t element);

// Calls `run(begin in a, begin in b, count)` for the runs of elements that `part` has both in `a`
// and in `b`, when each of these lies in row-major order; in the order of `a`. Requires: `part`
// lies within both.
template <class Visit>
void for_common_runs(const Box& part, const Box& a, const Box& b, const Visit& run);

// Implementation of for_common_runs(): the outer dimensions of the loop, and the contiguous runs.
struct CommonRuns {
  std::int64_t count = 1;               // elements of a run
  std::vector<std::int64_t> sizes;      // of the dimensions outside of a run
  std::vector<std::int64_t> strides_a;  // of these
  std::vector<std::int64_t> strides_b;
  std::int64_t first_a = 0, first_b = 0;
};
CommonRuns common_runs(const Box& part, const Box& a, const Box& b);

template <class Visit>
void for_common_runs(const Box& part, const Box& a, const Box& b, const Visit& run) {
  const CommonRuns runs = common_runs(part, a, b);
  std::vector<std::int64_t> index(runs.sizes.size());
  std::int64_t in_a = runs.first_a, in_b = runs.first_b;
  while (true) {
    run(in_a, in_b, runs.count);
    std::size_t dim = index.size();
    while (dim > 0) {
      --dim;
      in_a += runs.strides_a[dim];
      in_b += runs.strides_b[dim];
      if (++index[dim] < runs.sizes[dim]) break;
      in_a -= runs.strides_a[dim] * runs.sizes[dim];
      in_b -= runs.strides_b[dim] * runs.sizes[dim];
      index[dim] = 0;
      if (dim == 0) return;
    }
    if (index.empty()) return;
  }
}

}  // namespace paceline
