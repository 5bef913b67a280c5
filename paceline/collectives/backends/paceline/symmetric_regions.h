#pragma once

// The group's symmetric memory: which allocation a buffer lies in, by a number that all ranks give
// it, and where other ranks' buffers are in this process.
//
// Thread safety: none; one executor owns it.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "paceline/collectives/backends/paceline/phase_barrier.h"
#include "paceline/collectives/backends/paceline/shared_operation.h"
#include "paceline/transport/mesh.h"

namespace paceline {

class SymmetricRegions {
 public:
  // Requires: mesh.shared_memory(), and `mesh` outlives this object.
  explicit SymmetricRegions(Mesh& mesh) : mesh_(mesh) {}

  // Collective; errors as SharedMemory::allocate().
  std::shared_ptr<SharedBlocks> allocate(std::size_t bytes, Pages pages, Deadline deadline);
  SharedPlace find(const void* data, std::size_t bytes) const;
  // Where this rank's buffers lie.
  Announcement announcement_for(const SharedOperation& operation) const;
  // Whether all inputs lie in one region and all outputs in one region, which nobody has freed.
  // Error(kCorrupt) for a place that lies outside its rank's memory: it is about to be read or
  // written there.
  bool hold_all(const SharedOperation& operation, std::span<const Announcement> announced) const;
  // Requires: hold_all().
  std::byte* at(int rank, const SharedPlace& place) const {
    return region(place.region)->of(rank) + place.offset;
  }

 private:
  // An allocation of the group; dead once this rank has freed it.
  struct Region {
    std::int64_t number = 0;
    std::weak_ptr<SharedBlocks> owner;
    SharedBlocks* blocks = nullptr;
  };

  SharedBlocks* region(std::int64_t number) const;
  void require_inside(const SharedOperation& operation,
                      std::span<const Announcement> announced) const;

  Mesh& mesh_;
  std::vector<Region> regions_;
  std::int64_t num_allocations_ = 0;
};

}  // namespace paceline
