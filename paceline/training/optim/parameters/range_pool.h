#pragma once

// RangePool: gives away ranges of a block of memory. It knows only offsets. The same calls give the
// same ranges on every rank.
//
// Thread safety: none.

#include <cstddef>
#include <map>
#include <optional>

namespace paceline::optim {

class RangePool {
 public:
  static constexpr std::size_t kAlignment = 512;  // as in LibTorch's allocators for CUDA

  static constexpr std::size_t rounded(std::size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  explicit RangePool(std::size_t bytes);

  // Returns the offset of a range; empty if no hole is large enough. Small ranges come from the end
  // of the block and large ones from its beginning, so that small ranges, which may stay for a long
  // time, do not divide the hole for large ones.
  std::optional<std::size_t> take(std::size_t bytes);
  void give_back(std::size_t offset);

 private:
  const std::size_t size_;
  std::map<std::size_t, std::size_t> holes_;  // [offset]: bytes; neighbours are merged
  std::map<std::size_t, std::size_t> taken_;  // [offset]: bytes
};

}  // namespace paceline::optim
