#include "paceline/engine/collectives/memory/symmetric_arena.h"

#include <algorithm>
#include <iterator>
#include <span>

#include <sys/mman.h>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/transport/shared_memory.h"

namespace paceline {

namespace {

std::size_t round_up(std::size_t bytes) {
  constexpr std::size_t kUnit = SymmetricArena::kAlignment;
  return std::max(kUnit, (bytes + kUnit - 1) / kUnit * kUnit);
}

// A random number that rank 0 draws; never 0.
std::int64_t agree_on_number(ProcessGroup& group) {
  std::int64_t number = 0;
  while (number == 0) fill_random(std::as_writable_bytes(std::span(&number, 1)));
  group.broadcast(std::span(&number, 1), 0);
  return number;
}

}  // namespace

SymmetricArena::SymmetricArena(ProcessGroup& group, std::size_t bytes)
    : members_(group.world_ranks()),
      area_(group.reserve_symmetric(round_up(bytes))),
      number_(agree_on_number(group)) {
  add_free(0, area_.bytes());
}

std::byte* SymmetricArena::allocate(std::size_t bytes) {
  if (!area_.is_live() || bytes > area_.bytes()) return nullptr;
  const std::size_t size = round_up(bytes);
  const std::lock_guard lock(mutex_);
  const auto best = by_size_.lower_bound({size, 0});
  if (best == by_size_.end()) return nullptr;
  const auto [whole, begin] = *best;
  if (!populate(begin, size)) return nullptr;
  remove_free(free_.find(begin));
  if (whole > size) add_free(begin + size, whole - size);
  used_.emplace(begin, size);
  return area_.data() + begin;
}

// Requires mutex_.
bool SymmetricArena::populate(std::size_t begin, std::size_t size) {
  const std::size_t end = begin + size;
  const auto take = [&](std::size_t first, std::size_t last) {
    return first >= last || populate_pages(area_.data() + first, last - first);
  };
  if (!take(std::max(begin, populated_end_), end)) return false;
  populated_end_ = std::max(populated_end_, end);
  auto next = released_.upper_bound(begin);
  if (next != released_.begin()) --next;
  while (next != released_.end() && next->first < end) {
    const auto [first, last] = *next;
    if (!take(std::max(first, begin), std::min(last, end))) return false;
    if (last <= begin) {
      ++next;
      continue;
    }
    next = released_.erase(next);
    if (first < begin) released_.emplace(first, begin);
    if (last > end) released_.emplace(end, last);
  }
  return true;
}

void SymmetricArena::deallocate(std::byte* block) {
  auto begin = static_cast<std::size_t>(block - area_.data());
  const std::lock_guard lock(mutex_);
  const auto used = used_.find(begin);
  std::size_t size = used->second;
  used_.erase(used);
  if (!area_.is_live()) return;
  const auto next = free_.find(begin + size);
  if (next != free_.end()) {
    size += next->second;
    remove_free(next);
  }
  const auto after = free_.lower_bound(begin);
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == begin) {
      begin = before->first;
      size += before->second;
      remove_free(before);
    }
  }
  add_free(begin, size);
}

std::byte* SymmetricArena::area_of(int world_rank) const {
  const auto member = std::find(members_.begin(), members_.end(), world_rank);
  return member == members_.end() ? nullptr : area_.of(static_cast<int>(member - members_.begin()));
}

void SymmetricArena::release_unused() {
  const std::lock_guard lock(mutex_);
  if (!area_.is_live()) return;
  // madvise() fails for memory that is not backed by a file; that memory keeps its pages.
  released_.clear();
  for (const auto& [begin, size] : free_) {
    madvise(area_.data() + begin, size, MADV_REMOVE);
    released_.emplace(begin, begin + size);
  }
}

bool SymmetricArena::is_empty() {
  const std::lock_guard lock(mutex_);
  return used_.empty();
}

void SymmetricArena::add_free(std::size_t begin, std::size_t size) {
  free_.emplace(begin, size);
  by_size_.emplace(size, begin);
}

void SymmetricArena::remove_free(std::map<std::size_t, std::size_t>::iterator range) {
  by_size_.erase({range->second, range->first});
  free_.erase(range);
}

}  // namespace paceline
