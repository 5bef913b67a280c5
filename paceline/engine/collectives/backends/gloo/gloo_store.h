#pragma once

// Paceline's store as Gloo's, for the time in which its ranks connect.

#include <gloo/rendezvous/store.h>

#include "paceline/engine/collectives/backends/library.h"

namespace paceline {

class GlooStore : public gloo::rendezvous::Store {
 public:
  // Requires: `context` outlives this object.
  explicit GlooStore(const LibraryContext& context) : context_(context) {}

  void set(const std::string& key, const std::vector<char>& data) override;
  // Both wait until the keys are there, a peer dies (its error) or the context's deadline passes.
  std::vector<char> get(const std::string& key) override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;

 private:
  const LibraryContext& context_;
};

}  // namespace paceline
