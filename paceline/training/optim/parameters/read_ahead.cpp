#include "paceline/training/optim/parameters/read_ahead.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "paceline/engine/core/check.h"

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

RangePool::RangePool(std::size_t bytes) : size_(rounded(bytes)) {
  if (size_ > 0) holes_[0] = size_;
}

std::optional<std::size_t> RangePool::take(std::size_t bytes) {
  const std::size_t size = rounded(bytes);
  const auto fits = [size](const auto& hole) { return hole.second >= size; };
  const bool is_small = size * 4 <= size_;
  auto found = holes_.end();
  if (is_small) {
    const auto last = std::find_if(holes_.rbegin(), holes_.rend(), fits);
    if (last != holes_.rend()) found = std::prev(last.base());
  } else {
    found = std::find_if(holes_.begin(), holes_.end(), fits);
  }
  if (found == holes_.end()) return std::nullopt;
  const auto [begin, length] = *found;
  holes_.erase(found);
  const std::size_t offset = is_small ? begin + length - size : begin;
  if (length > size) holes_[is_small ? begin : begin + size] = length - size;
  taken_[offset] = size;
  return offset;
}

void RangePool::give_back(std::size_t offset) {
  const auto taken = taken_.find(offset);
  auto hole = holes_.emplace(offset, taken->second).first;
  taken_.erase(taken);
  const auto next = std::next(hole);
  if (next != holes_.end() && hole->first + hole->second == next->first) {
    hole->second += next->second;
    holes_.erase(next);
  }
  if (hole == holes_.begin()) return;
  const auto before = std::prev(hole);
  if (before->first + before->second != hole->first) return;
  before->second += hole->second;
  holes_.erase(hole);
}

}  // namespace paceline::optim
