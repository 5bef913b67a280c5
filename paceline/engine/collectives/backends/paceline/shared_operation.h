#pragma once

// One call of a collective among ranks that map each other's memory, with all that its steps need.

#include <cstddef>
#include <cstring>

#include "paceline/engine/collectives/backend.h"

namespace paceline {

struct SharedOperation {
  const Collective& call;
  const Fingerprint& fingerprint;
  const WaitOptions& wait;
  std::size_t element;  // bytes
};

inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace paceline
