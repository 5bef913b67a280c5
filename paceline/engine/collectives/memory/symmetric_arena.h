#pragma once

// Gives out blocks of one large symmetric area, so that memory which comes and goes, such as
// tensors, needs no copies in collectives either. The area takes the pages of a block when it gives
// it out, so that a lack of memory is no signal later; freed blocks are joined with free neighbours
// and used again, smallest fit first.
//
// Once the group has failed, nothing is given out or used again: a rank that is late may still
// write results there.
//
// Thread safety: every method may be called from any thread.

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "paceline/engine/collectives/group/process_group.h"

namespace paceline {

class SymmetricArena {
 public:
  static constexpr std::size_t kAlignment = 4096;

  // Collective. Error(kSystem) on every rank when one of them cannot get the address space.
  SymmetricArena(ProcessGroup& group, std::size_t bytes);

  // Aligned to kAlignment, not zeroed; null when no free range is large enough, or when the system
  // has no memory for it.
  std::byte* allocate(std::size_t bytes);
  // Requires: what allocate() gave.
  void deallocate(std::byte* block);

  bool contains(const void* address) const {
    const auto* const byte = static_cast<const std::byte*>(address);
    return byte >= area_.data() && byte < area_.data() + area_.bytes();
  }
  // The same on all ranks of the group, and drawn at random, so no other arena has it.
  std::int64_t number() const { return number_; }
  std::size_t bytes() const { return area_.bytes(); }
  // Where this process sees the area of a rank, by its number in the world; null for ranks outside
  // the group. A block has the same distance from its owner's area in every process.
  std::byte* area_of(int world_rank) const;
  // Gives the pages of free ranges back to the system, which are fresh when they are used again.
  void release_unused();
  // Whether no block is given out.
  bool is_empty();

 private:
  bool bring(std::size_t begin, std::size_t size);
  void add_free(std::size_t begin, std::size_t size);
  void remove_free(std::map<std::size_t, std::size_t>::iterator range);

  const std::vector<int> members_;  // their numbers in the world
  const SymmetricBuffer area_;
  const std::int64_t number_;
  std::mutex mutex_;                                       // guards everything below
  std::map<std::size_t, std::size_t> free_;                // begin -> size
  std::set<std::pair<std::size_t, std::size_t>> by_size_;  // (size, begin) of the same ranges
  std::unordered_map<std::size_t, std::size_t> used_;      // begin -> size
  // Blocks have been given out up to this offset, so the pages before it are there, except those of
  // the released ranges.
  std::size_t brought_ = 0;
  std::map<std::size_t, std::size_t> released_;  // begin -> end; within free ranges
};

}  // namespace paceline
