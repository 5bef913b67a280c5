#pragma once

// Shared memory among the threads of one process: a block is plain memory, lent under a number that
// is passed around over the data sockets. The same lock-free code as between processes runs on it,
// visible to the thread sanitizer.

#include <memory>

#include "paceline/engine/transport/mesh.h"
#include "paceline/engine/transport/shared_memory.h"

namespace paceline {

class LoopbackMemory : public SharedMemory {
 public:
  // Requires: `mesh` outlives this object; its neighbours are threads of this process.
  explicit LoopbackMemory(Mesh& mesh) : mesh_(mesh) {}
  const char* name() const override { return "loopback"; }
  std::shared_ptr<SharedBlocks> allocate(std::size_t bytes, Pages pages,
                                         Deadline deadline) override;

 private:
  Mesh& mesh_;
};

}  // namespace paceline
