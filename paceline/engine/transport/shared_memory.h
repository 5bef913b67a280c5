#pragma once

// Memory that the ranks of a host read and write in place. The leaves shm/ (processes of one
// host) and loopback/ (threads of one process) implement it.

#include <cstddef>
#include <memory>
#include <vector>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/transport/mapping.h"

namespace paceline {

// One block for each rank of this host, all of the same size, zeroed, page-aligned. A resource: the
// memory is unmapped when the last owner lets go. Owners are the group and the user's
// SymmetricBuffer or tensors.
class SharedBlocks {
 public:
  virtual ~SharedBlocks() = default;
  std::size_t bytes() const { return bytes_; }
  // Where this process sees the block of `rank`; null for a rank of another host.
  std::byte* of(int rank) const { return bases_[static_cast<std::size_t>(rank)]; }

 protected:
  std::size_t bytes_ = 0;
  std::vector<std::byte*> bases_;
};

class SharedMemory {
 public:
  virtual ~SharedMemory() = default;
  // "shm" or "loopback".
  virtual const char* name() const = 0;
  // Collective: every rank of the host calls it, in the same order, with the same arguments.
  // Error(kSystem) with the needed size, on every one of them, when one of them cannot get the
  // memory; never a signal later.
  virtual std::shared_ptr<SharedBlocks> allocate(std::size_t bytes, Pages pages,
                                                 Deadline deadline) = 0;
};

}  // namespace paceline
