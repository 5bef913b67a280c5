#pragma once

// Brings elements that lie in another order of dimensions (channels_last, transposed) to row-major
// order, in which a Snapshot has them. Thread safety: pure.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace paceline {

// Copies `run`, bytes [first, first + run.size()) of a dense tensor in the order of its memory, to
// the places of these elements in `whole`, which has the tensor in row-major order. `strides` are
// the tensor's in memory, in elements; `element` is the size of one, in bytes. Requires: strides of
// memory without gaps and overlaps, whole elements, `whole` aligned to them.
void copy_to_row_major(std::byte* whole, std::span<const std::byte> run, std::size_t first,
                       std::size_t element, const std::vector<std::int64_t>& shape,
                       const std::vector<std::int64_t>& strides);

}  // namespace paceline
