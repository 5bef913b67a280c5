#include "paceline/files/checkpoint/box.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include <fmt/format.h>

#include "paceline/engine/core/system/simd.h"

namespace paceline {
namespace {

// One dimension of a copy.
struct Dim {
  std::int64_t size = 1;
  std::int64_t to = 1, from = 1;  // strides, in elements
};

// Reduces a copy to the fewest dimensions, but at least two, the innermost last: dimensions of one
// element are dropped, and two dimensions that are contiguous in both memories become one.
std::vector<Dim> dims_of_copy(const StridedPointer& to, const StridedPointer& from,
                              std::span<const std::int64_t> sizes) {
  std::vector<Dim> dims;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] != 1) dims.push_back({sizes[i], to.strides[i], from.strides[i]});
  }
  std::ranges::stable_sort(dims, std::ranges::greater(), &Dim::to);
  std::vector<Dim> merged;
  for (const Dim& dim : dims) {
    if (!merged.empty() && merged.back().to == dim.to * dim.size &&
        merged.back().from == dim.from * dim.size) {
      merged.back() = {merged.back().size * dim.size, dim.to, dim.from};
    } else {
      merged.push_back(dim);
    }
  }
  while (merged.size() < 2) merged.insert(merged.begin(), Dim{});
  return merged;
}

template <std::size_t kBytes>
void copy_row(std::byte* to, const std::byte* from, const Dim& row) {
  for (std::int64_t i = 0; i < row.size; ++i)
    std::memcpy(to + i * row.to * static_cast<std::int64_t>(kBytes),
                from + i * row.from * static_cast<std::int64_t>(kBytes), kBytes);
}

void copy_row(std::byte* to, const std::byte* from, const Dim& row, std::size_t element) {
  if (row.to == 1 && row.from == 1) {
    std::memcpy(to, from, static_cast<std::size_t>(row.size) * element);
    return;
  }
  switch (element) {
    case 1:
      return copy_row<1>(to, from, row);
    case 2:
      return copy_row<2>(to, from, row);
    case 4:
      return copy_row<4>(to, from, row);
    default:
      return copy_row<8>(to, from, row);
  }
}

// A copy bypasses the caches when a row has at least kLongRow bytes, and all rows together have at
// least kManyBytes.
constexpr std::size_t kLongRow = 512;
constexpr std::size_t kManyBytes = 64 << 10;

void copy_rows(std::byte* to, const std::byte* from, const Dim& rows, const Dim& row,
               std::size_t element) {
  const auto scale = static_cast<std::int64_t>(element);
  const auto bytes = static_cast<std::size_t>(row.size * scale);
  const auto count = static_cast<std::size_t>(rows.size);
  const bool is_dense = row.to == 1 && row.from == 1;
  if (is_dense && bytes >= kLongRow && bytes * count >= kManyBytes)
    return copy_rows_past_caches(to, from, bytes, count, {rows.to * scale, rows.from * scale});
  for (std::int64_t i = 0; i < rows.size; ++i)
    copy_row(to + i * rows.to * scale, from + i * rows.from * scale, row, element);
}

}  // namespace

std::string to_string(const Box& box) {
  std::string text;
  for (std::size_t i = 0; i < box.sizes.size(); ++i) {
    text +=
        fmt::format("{}{}:{}", i == 0 ? "" : ", ", box.offsets[i], box.offsets[i] + box.sizes[i]);
  }
  return "[" + text + "]";
}

std::int64_t num_elements(std::span<const std::int64_t> sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
}

Box whole_box(const std::vector<std::int64_t>& shape) {
  return {std::vector<std::int64_t>(shape.size()), shape};
}

std::optional<Box> common_part(const Box& a, const Box& b) {
  Box common = a;
  for (std::size_t i = 0; i < a.sizes.size(); ++i) {
    const auto begin = std::max(a.offsets[i], b.offsets[i]);
    const auto end = std::min(a.offsets[i] + a.sizes[i], b.offsets[i] + b.sizes[i]);
    if (begin >= end) return std::nullopt;
    common.offsets[i] = begin;
    common.sizes[i] = end - begin;
  }
  return common;
}

std::vector<Box> without(const Box& box, const Box& taken) {
  const auto common = common_part(box, taken);
  if (!common) return {box};
  std::vector<Box> rest;
  Box left = box;  // the elements that may still be in `taken`
  for (std::size_t i = 0; i < box.sizes.size(); ++i) {
    const auto begin = left.offsets[i], end = begin + left.sizes[i];
    const auto inner = common->offsets[i], inner_end = inner + common->sizes[i];
    const auto slab = [&](std::int64_t from, std::int64_t to) {
      if (from >= to) return;
      rest.push_back(left);
      rest.back().offsets[i] = from;
      rest.back().sizes[i] = to - from;
    };
    slab(begin, inner);
    slab(inner_end, end);
    left.offsets[i] = inner;
    left.sizes[i] = common->sizes[i];
  }
  return rest;
}

std::vector<Box> boxes_of_run(const std::vector<std::int64_t>& shape, std::int64_t first,
                              std::int64_t count) {
  std::vector<Box> boxes;
  const auto strides = row_major_strides(shape);
  // At each position, take the largest box that begins there: whole rows of the outermost dimension
  // in which the position is the beginning of a row and the run has at least one row left.
  while (count > 0) {
    Box box{std::vector<std::int64_t>(shape.size()), std::vector<std::int64_t>(shape.size(), 1)};
    std::int64_t rest = first;
    for (std::size_t i = 0; i < shape.size(); ++i) {
      box.offsets[i] = rest / strides[i];
      rest %= strides[i];
    }
    std::size_t dim = 0;
    while (dim < shape.size() && (first % strides[dim] != 0 || count < strides[dim])) ++dim;
    std::int64_t taken = 1;
    if (dim < shape.size()) {
      box.sizes[dim] = std::min(shape[dim] - box.offsets[dim], count / strides[dim]);
      std::copy(shape.begin() + static_cast<std::ptrdiff_t>(dim) + 1, shape.end(),
                box.sizes.begin() + static_cast<std::ptrdiff_t>(dim) + 1);
      taken = box.sizes[dim] * strides[dim];
    }
    boxes.push_back(std::move(box));
    first += taken;
    count -= taken;
  }
  return boxes;
}

std::vector<Box> boxes_of_run(const std::vector<std::int64_t>& shape,
                              std::span<const std::int64_t> strides, std::int64_t first,
                              std::int64_t count) {
  std::vector<std::size_t> order(shape.size());  // the dimensions in the order of memory
  std::iota(order.begin(), order.end(), 0);
  // The stride of a dimension with one element is arbitrary.
  std::ranges::stable_sort(order, std::ranges::greater(), [&](std::size_t dim) {
    return shape[dim] == 1 ? std::int64_t{0} : strides[dim];
  });
  std::vector<std::int64_t> in_memory;
  for (const std::size_t dim : order) in_memory.push_back(shape[dim]);
  std::vector<Box> boxes = boxes_of_run(in_memory, first, count);
  for (Box& box : boxes) {
    const Box found = box;
    for (std::size_t i = 0; i < order.size(); ++i) {
      box.offsets[order[i]] = found.offsets[i];
      box.sizes[order[i]] = found.sizes[i];
    }
  }
  return boxes;
}

std::vector<std::int64_t> row_major_strides(const std::vector<std::int64_t>& sizes) {
  std::vector<std::int64_t> strides(sizes.size());
  std::int64_t stride = 1;
  for (std::size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= sizes[i];
  }
  return strides;
}

StridedPointer place_of_part(const StridedPointer& place, const Box& box, const Box& part,
                             std::size_t element) {
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < box.sizes.size(); ++i)
    offset += (part.offsets[i] - box.offsets[i]) * place.strides[i];
  return {place.data + offset * static_cast<std::int64_t>(element), place.strides};
}

void copy_elements(const StridedPointer& to, const StridedPointer& from,
                   std::span<const std::int64_t> sizes, std::size_t element) {
  if (num_elements(sizes) == 0) return;
  const auto dims = dims_of_copy(to, from, sizes);
  const Dim& row = dims.back();
  const Dim& rows = dims[dims.size() - 2];
  const auto scale = static_cast<std::int64_t>(element);
  std::vector<std::int64_t> index(dims.size() - 2);
  std::byte* target = to.data;
  const std::byte* source = from.data;
  while (true) {
    copy_rows(target, source, rows, row, element);
    std::size_t dim = index.size();
    for (; dim > 0; --dim) {
      const Dim& outer = dims[dim - 1];
      target += outer.to * scale;
      source += outer.from * scale;
      if (++index[dim - 1] < outer.size) break;
      target -= outer.to * outer.size * scale;
      source -= outer.from * outer.size * scale;
      index[dim - 1] = 0;
    }
    if (dim == 0) return;
  }
}

CommonRuns common_runs(const Box& part, const Box& a, const Box& b) {
  CommonRuns runs;
  const auto strides_a = row_major_strides(a.sizes), strides_b = row_major_strides(b.sizes);
  for (std::size_t i = 0; i < part.sizes.size(); ++i) {
    runs.first_a += (part.offsets[i] - a.offsets[i]) * strides_a[i];
    runs.first_b += (part.offsets[i] - b.offsets[i]) * strides_b[i];
  }
  // The innermost dimensions that are whole in both boxes are contiguous in both.
  std::size_t outer = part.sizes.size();
  while (outer > 0) {
    --outer;
    runs.count *= part.sizes[outer];
    if (part.sizes[outer] != a.sizes[outer] || part.sizes[outer] != b.sizes[outer]) break;
  }
  for (std::size_t i = 0; i < outer; ++i) {
    runs.sizes.push_back(part.sizes[i]);
    runs.strides_a.push_back(strides_a[i]);
    runs.strides_b.push_back(strides_b[i]);
  }
  return runs;
}

}  // namespace paceline
