#pragma once

// How the ranks of a host get shared blocks. Every rank gives every other rank a handle to a block
// of memory, over the data channels, which ranks that share memory use for nothing else. Then all
// ranks tell each other whether they could map the blocks, so that either all ranks have the memory
// or none has it. Processes pass descriptors of anonymous files, and threads of one process pass
// numbers.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/transport/mesh.h"
#include "paceline/engine/transport/shared_memory.h"

namespace paceline {

struct MemoryHandle {
  std::uint64_t value = 0;
  int fd = -1;  // a descriptor to pass, or -1; the receiver owns its copy
};

// Exchanges handles: `make(peer)` returns the handle for a peer, `take(peer, handle)` receives the
// peer's handle. Collective. Returns 0, or the errno with which the kernel refused to pass one of
// this rank's descriptors; a peer whose descriptor was refused receives the value 0. Errors:
// kInvalid on every rank if the ranks asked for different sizes, kTimeout naming the rank that did
// not arrive, kPeerLost.
int exchange_with_peers(Mesh& mesh, std::size_t bytes, Deadline deadline,
                        const std::function<MemoryHandle(int peer)>& make,
                        const std::function<void(int peer, MemoryHandle handle)>& take);

// The last step of an allocation. `error` is 0 if this rank has mapped every block, otherwise an
// errno. Returns if every rank has mapped all blocks; otherwise throws Error(kSystem) on every
// rank, naming a rank that has not.
void require_all_mapped(Mesh& mesh, std::size_t bytes, Deadline deadline, int error);

// Shared memory among the processes of one host: each rank makes an anonymous file (memfd),
// reserves its pages unless they are allocated on touch, and passes the descriptor to its peers. A
// process that dies leaves no file behind, and the file does not count against /dev/shm.
class ShmMemory : public SharedMemory {
 public:
  // Requires: `mesh` outlives this object.
  explicit ShmMemory(Mesh& mesh) : mesh_(mesh) {}
  const char* name() const override { return "shm"; }
  std::shared_ptr<SharedBlocks> allocate(std::size_t bytes, Pages pages,
                                         Deadline deadline) override;

 private:
  Mesh& mesh_;
};

// Shared memory among the threads of one process: a block is plain memory, lent under a number that
// is sent to the peers over the data channels. The lock-free code that processes use also runs on
// this memory, where the thread sanitizer can check it.
class LoopbackMemory : public SharedMemory {
 public:
  // Requires: `mesh` outlives this object, and its neighbours are threads of this process.
  explicit LoopbackMemory(Mesh& mesh) : mesh_(mesh) {}
  const char* name() const override { return "loopback"; }
  std::shared_ptr<SharedBlocks> allocate(std::size_t bytes, Pages pages,
                                         Deadline deadline) override;

 private:
  Mesh& mesh_;
};

}  // namespace paceline
