#pragma once

// A box is a rectangular part of a tensor: an offset and a size for each dimension. Ranks hold
// boxes, and files store boxes, so a checkpoint does not depend on the number of ranks or on how
// the ranks divide the model. The box of a scalar has no dimensions and one element.
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

// Returns, for instance, "[0:3, 4:8]": Python's notation for slices.
std::string to_string(const Box& box);

std::int64_t num_elements(std::span<const std::int64_t> sizes);
inline std::int64_t num_elements(const Box& box) { return num_elements(box.sizes); }

// The box that covers a whole tensor.
Box whole_box(const std::vector<std::int64_t>& shape);

// The elements that both boxes have; nullopt when there are none. Requires: both are of one tensor.
std::optional<Box> common_part(const Box& a, const Box& b);

// The elements of `box` that are not in `taken`, as disjoint boxes.
std::vector<Box> without(const Box& box, const Box& taken);

// Divides the elements [first, first + count) of a row-major tensor into boxes: at most two for
// each dimension.
std::vector<Box> boxes_of_run(const std::vector<std::int64_t>& shape, std::int64_t first,
                              std::int64_t count);
// As above, for a tensor whose memory has the order that `strides` describe. Requires: the memory
// has no gaps and no overlaps.
std::vector<Box> boxes_of_run(const std::vector<std::int64_t>& shape,
                              std::span<const std::int64_t> strides, std::int64_t first,
                              std::int64_t count);

// The strides, in elements, of a row-major tensor of these sizes.
std::vector<std::int64_t> row_major_strides(const std::vector<std::int64_t>& sizes);

// The place of a box in memory.
struct StridedPointer {
  std::byte* data = nullptr;          // the first element
  std::vector<std::int64_t> strides;  // in elements
};

// Returns the place of `part`, if `place` is that of `box`. Requires: `part` lies within `box`.
StridedPointer place_of_part(const StridedPointer& place, const Box& box, const Box& part,
                             std::size_t element);

// Copies a box of these sizes from one place to another, whatever the order of the elements in
// each. `element`: the bytes of an element: 1, 2, 4 or 8. Requires: the places do not overlap.
void copy_elements(const StridedPointer& to, const StridedPointer& from,
                   std::span<const std::int64_t> sizes, std::size_t element);

// Calls `run(begin in a, begin in b, count)` for each run of elements of `part` that is contiguous
// both in `a` and in `b`, which are stored in row-major order. The calls follow the order of `a`.
// Requires: `part` lies within both boxes.
template <class Visit>
void for_common_runs(const Box& part, const Box& a, const Box& b, const Visit& run);

// Implementation of for_common_runs(): the outer dimensions of the loop, and the contiguous runs.
struct CommonRuns {
  std::int64_t count = 1;               // elements of a run
  std::vector<std::int64_t> sizes;      // sizes of the dimensions outside a run
  std::vector<std::int64_t> strides_a;  // their strides in `a` and in `b`
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
