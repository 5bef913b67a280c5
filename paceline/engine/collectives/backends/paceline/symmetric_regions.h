#pragma once

// Finds the symmetric allocation in which a buffer lies: the registry of all allocations of a rank
// (SymmetricRegistry), and a group's view of it (SymmetricRegions).

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "paceline/engine/collectives/backends/paceline/group_share.h"
#include "paceline/engine/transport/mesh.h"
#include "paceline/engine/transport/shared_memory.h"

namespace paceline {

// The symmetric memory that a rank has in a group and in all groups made from it, so that each of
// these groups finds the allocations of the others. Thread safety: every method may be called from
// any thread.
class SymmetricRegistry {
 public:
  struct Entry {
    std::int64_t number = 0;   // the same on every rank, and unique among allocations
    std::vector<int> members;  // the owners of the blocks, as ranks in the world
    std::weak_ptr<SharedBlocks> blocks;
  };

  void add(Entry entry) {
    const std::lock_guard lock(mutex_);
    std::erase_if(entries_, [](const Entry& old) { return old.blocks.expired(); });
    entries_.push_back(std::move(entry));
    version_.fetch_add(1, std::memory_order_release);
  }
  // A number that changes with every add().
  std::uint64_t version() const { return version_.load(std::memory_order_acquire); }
  std::vector<Entry> entries() const {
    const std::lock_guard lock(mutex_);
    return entries_;
  }

 private:
  mutable std::mutex mutex_;  // guards entries_
  std::vector<Entry> entries_;
  std::atomic<std::uint64_t> version_ = 0;
};

// The symmetric memory that a group can use: its own, and that of related groups in which each of
// this group's ranks has a block. The class finds the number of a buffer's allocation, which is the
// same on all ranks, and the addresses of other ranks' buffers in this process.
//
// Thread safety: none; one executor owns it.
class SymmetricRegions {
 public:
  // Requires: mesh.shared_memory(), and `mesh` outlives this object.
  SymmetricRegions(Mesh& mesh, std::shared_ptr<SymmetricRegistry> registry)
      : mesh_(mesh), registry_(std::move(registry)) {}

  // Allocates symmetric memory. Collective. Errors: those of SharedMemory::allocate().
  std::shared_ptr<SharedBlocks> allocate(std::size_t bytes, Pages pages, Deadline deadline);
  // Finds a buffer among all allocations made so far.
  BufferLocation find(const void* data, std::size_t bytes);
  // The announcement of `operation`, with the places of this rank's buffers.
  Announcement announcement_for(const SharedOperation& operation);
  // Whether all inputs lie in one region and all outputs in one region, and these regions have not
  // been freed; false for a call without elements. Error(kCorrupt) for a place outside its rank's
  // memory, because the caller is about to read or write there.
  bool hold_all(const SharedOperation& operation, std::span<const Announcement> announced) const;
  // The address of a rank's buffer. Requires: hold_all() returned true. Null if the rank has no
  // such buffer, or if this rank has freed its region.
  std::byte* at(int rank, const BufferLocation& place) const {
    const Region* held = region(place.region);
    return held == nullptr ? nullptr : held->of(rank) + place.offset;
  }

 private:
  // An allocation with a block for every rank of the group; dead once this rank has freed it.
  struct Region {
    std::int64_t number = 0;
    std::weak_ptr<SharedBlocks> owner;
    std::size_t bytes = 0;
    std::vector<std::byte*> bases;  // addresses of the blocks, by rank of this group

    std::byte* of(int rank) const { return bases[static_cast<std::size_t>(rank)]; }
  };

  void refresh();
  const Region* region(std::int64_t number) const;
  void require_inside(const SharedOperation& operation,
                      std::span<const Announcement> announced) const;

  Mesh& mesh_;
  const std::shared_ptr<SymmetricRegistry> registry_;  // owners: the rank's groups
  // The version of the registry when regions_ was last updated.
  std::uint64_t seen_ = 0;
  std::vector<Region> regions_;
  std::uint64_t num_allocations_ = 0;
};

}  // namespace paceline
