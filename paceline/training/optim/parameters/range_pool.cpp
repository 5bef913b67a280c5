#include "paceline/training/optim/parameters/range_pool.h"

#include <algorithm>
#include <iterator>

namespace paceline::optim {

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
