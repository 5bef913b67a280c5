#include "paceline/training/optim/parameters/read_order.h"

#include <algorithm>
#include <utility>

namespace paceline::optim {

bool ReadOrder::note(std::span<const std::size_t> units) {
  if (std::ranges::equal(units, last_)) return false;
  last_.assign(units.begin(), units.end());
  for (const std::size_t unit : units) {
    if (order_.size() < kLongest) order_.push_back(unit);
    // The order repeats, for instance in an evaluation, which takes no step.
    if (!find(unit, at_)) find(unit, 0);
  }
  return true;
}

bool ReadOrder::find(std::size_t unit, std::size_t from) {
  const auto begin = expected_.begin() + static_cast<std::ptrdiff_t>(from);
  const auto length = std::min(kWindow, expected_.size() - from);
  const auto end = begin + static_cast<std::ptrdiff_t>(length);
  const auto found = std::find(begin, end, unit);
  if (found == end) return false;
  at_ = static_cast<std::size_t>(found - expected_.begin()) + 1;
  return true;
}

std::span<const std::size_t> ReadOrder::next() const {
  return std::span(expected_).subspan(at_).first(std::min(kAhead, expected_.size() - at_));
}

void ReadOrder::begin_step() {
  expected_ = std::exchange(order_, {});
  last_.clear();
  at_ = 0;
}

}  // namespace paceline::optim
