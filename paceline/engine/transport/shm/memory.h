#pragma once

// Shared memory among the processes of one host: each rank makes an anonymous file (memfd),
// reserves its pages and passes the descriptor to its peers. It has no name, so nothing is left
// behind by any death, and it does not count against /dev/shm.

#include <memory>

#include "paceline/engine/transport/mesh.h"
#include "paceline/engine/transport/shared_memory.h"

namespace paceline {

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

}  // namespace paceline
