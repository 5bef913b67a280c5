#pragma once

// The groups of a rank that were made of one another. When one of them fails, the peers in the
// others are told why: should this rank leave them next, they name the first cause, and not this
// rank, which only followed. A group whose relative has failed goes on; what its rank makes of the
// failure is the program's business.
//
// Thread safety: every method may be called from any thread, but not by a thread that holds a lock
// of a mesh.

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "paceline/engine/transport/mesh.h"

namespace paceline {

class FailureDomain {
 public:
  // Until remove(), the mesh is told what happens to the others.
  void add(Mesh& mesh) {
    const std::lock_guard lock(mutex_);
    meshes_.push_back(&mesh);
  }
  void remove(Mesh& mesh) {
    const std::lock_guard lock(mutex_);
    std::erase(meshes_, &mesh);
  }
  // `failed` has, with that text.
  void tell(const Mesh& failed, const std::string& cause) {
    const std::lock_guard lock(mutex_);
    for (Mesh* mesh : meshes_) {
      if (mesh != &failed) mesh->foretell(cause);
    }
  }

 private:
  std::mutex mutex_;  // guards meshes_, and keeps each alive while it is told
  std::vector<Mesh*> meshes_;
};

}  // namespace paceline
