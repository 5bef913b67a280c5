#pragma once

// A visit: all ranks arrive with a buffer, a body runs on every rank, and all finish. Each rank's
// body works on one block of *every* rank's buffer, in place where the ranks share memory. An
// all_reduce is the visit whose body adds up all ranks' elements and writes the sum to each.

#include <algorithm>
#include <cstddef>
#include <functional>
#include <span>

#include "paceline/engine/core/dtype.h"

namespace paceline {

// What a body works on.
struct Visit {
  std::size_t begin = 0;  // of these elements, in each rank's buffer
  std::size_t count = 0;
  std::span<std::byte* const> data;  // by rank: where its elements are

  template <class T>
  std::span<T> of(int rank) const {
    return {reinterpret_cast<T*>(data[static_cast<std::size_t>(rank)]), count};
  }
};

// Called once or several times, each time for a piece of the block. What it writes is there for the
// owners when the visit is done.
using VisitBody = std::function<void(const Visit& visit)>;

struct VisitedBlock {
  std::size_t begin = 0;
  std::size_t count = 0;
};

// The block that `rank` visits of buffers with `count` elements: of equal length but for the last
// ones, in the order of ranks, and beginning at multiples of 64 bytes.
constexpr VisitedBlock visited_block(std::size_t count, Dtype dtype, int rank, int world_size) {
  const std::size_t line = 64 / size_of(dtype);
  const auto world = static_cast<std::size_t>(world_size);
  const std::size_t lines = count / line + (count % line != 0);
  const std::size_t length = (lines / world + (lines % world != 0)) * line;
  const std::size_t begin = std::min(count, length * static_cast<std::size_t>(rank));
  return {begin, std::min(length, count - begin)};
}

}  // namespace paceline
