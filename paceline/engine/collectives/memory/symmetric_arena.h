#pragma once

// Allocates blocks from one large symmetric area, so that collectives on short-lived memory, such
// as tensors, also need no copies. The pages of a block are allocated together with the block, so
// that allocate() notices a lack of memory, and no access raises a signal later. Freed blocks are
// merged with free neighbours and reused, smallest fit first.
//
// Once the group has failed, no memory is allocated or reused, because a late rank may still write
// results there.
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

  // Allocates a block, aligned to kAlignment and not zeroed. Null if no free range is large enough,
  // or if the system lacks memory.
  std::byte* allocate(std::size_t bytes);
  // Frees a block that allocate() returned.
  void deallocate(std::byte* block);

  bool contains(const void* address) const {
    const auto* const byte = static_cast<const std::byte*>(address);
    return byte >= area_.data() && byte < area_.data() + area_.bytes();
  }
  // The arena's number: drawn at random and the same on all ranks of the group, so no other arena
  // has it.
  std::int64_t number() const { return number_; }
  std::size_t bytes() const { return area_.bytes(); }
  // The address in this process of the area of the rank `world_rank`; null for ranks outside
  // the group. A block has the same offset in its owner's area in every process.
  std::byte* area_of(int world_rank) const;
  // Returns the pages of free ranges of shared memory to the system; they read zero when reused.
  void release_unused();
  // Whether no block is allocated.
  bool is_empty();

 private:
  bool populate(std::size_t begin, std::size_t size);
  void add_free(std::size_t begin, std::size_t size);
  void remove_free(std::map<std::size_t, std::size_t>::iterator range);

  const std::vector<int> members_;  // the members' ranks in the world
  const SymmetricBuffer area_;
  const std::int64_t number_;
  std::mutex mutex_;                                       // guards everything below
  std::map<std::size_t, std::size_t> free_;                // free ranges: begin -> size
  std::set<std::pair<std::size_t, std::size_t>> by_size_;  // (size, begin) of the same ranges
  std::unordered_map<std::size_t, std::size_t> used_;      // allocated blocks: begin -> size
  // The end of the highest block allocated so far: the pages before it are present, except those of
  // released ranges.
  std::size_t populated_end_ = 0;
  // Begin -> end of released ranges, which lie within free ones.
  std::map<std::size_t, std::size_t> released_;
};

}  // namespace paceline
