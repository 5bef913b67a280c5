#pragma once

// Allocates LibTorch's large CPU tensors in memory that the ranks of a host share.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "paceline/engine/collectives/group/process_group.h"

namespace paceline {

class SymmetricArena;

// While an object of this class lives, LibTorch allocates the large CPU tensors of this process,
// whichever code makes them, in memory that the group's ranks on this host share. An all-reduce of
// a gradient then needs no copy into a bucket, and the stages of a pipeline read each other's
// results in place. Freed memory is kept and reused, which also saves the cost of fresh pages.
// Tensors that outlive the object keep their memory.
//
// A forked child must not access tensors that its parent made while the object lived.
//
// Thread safety: only one object may exist in a process at a time; any thread may make tensors.
class SymmetricTensors {
 public:
  // Tensors smaller than this are allocated as usual.
  static constexpr std::size_t kMinBytes = 256 << 10;

  // Collective. Has no effect, on every rank, if the group's ranks share no memory, or if one of
  // them does not have enough address space; the second case logs a warning. `bytes`: for each
  // rank; 0: the rank's share of the machine's memory. Tensors that do not fit are allocated as
  // usual.
  explicit SymmetricTensors(GroupRef group, std::size_t bytes = 0);
  ~SymmetricTensors();
  SymmetricTensors(const SymmetricTensors&) = delete;
  SymmetricTensors& operator=(const SymmetricTensors&) = delete;

  // Returns the pages of freed tensors to the system. Call it after freeing many tensors whose
  // memory will not be needed again. Any thread may call it; it does nothing if tensors are
  // allocated as usual.
  static void release_unused();

 private:
  // Shared with the allocator while the arena contains tensors.
  std::shared_ptr<SymmetricArena> arena_;
};

}  // namespace paceline
