#pragma once

// Reading ahead: which units of divided parameters operations read next, and where in a block of
// memory a unit lies while it is whole.
//
// Thread safety: none.

#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <vector>

namespace paceline::optim {

// Predicts the units of parameters that operations read next, from the order in which they read
// units in the previous step.
class ReadOrder {
 public:
  // Call it when an operation reads these units. Returns false if the operation before it has read
  // the same units.
  bool note(std::span<const std::size_t> units);
  // The units that were read next in the previous step, the nearest first; at most kAhead.
  std::span<const std::size_t> next() const;
  void begin_step();

 private:
  static constexpr std::size_t kAhead = 8;
  // How far an operation is looked for in the previous step's order, from where the last one was.
  static constexpr std::size_t kWindow = 64;
  static constexpr std::size_t kLongest = 1U << 16U;  // a longer order is not kept

  bool find(std::size_t unit, std::size_t from);

  std::vector<std::size_t> last_;      // the units of the last operation
  std::vector<std::size_t> order_;     // of this step
  std::vector<std::size_t> expected_;  // the order of the previous step
  std::size_t at_ = 0;                 // the place in expected_ after the last unit
};

// Gives away ranges of a block of memory. It knows only offsets. The same calls give the same
// ranges on every rank.
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
