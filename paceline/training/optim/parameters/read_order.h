#pragma once

// ReadOrder: predicts the units of parameters that operations read next, from the order in which
// they read units in the previous step.
//
// Thread safety: none.

#include <cstddef>
#include <span>
#include <vector>

namespace paceline::optim {

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

}  // namespace paceline::optim
