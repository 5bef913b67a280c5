#pragma once

// Gloo over TCP (Debian's libgloo-dev): all operations and types. Sums of 16-bit floats are rounded
// after every step of the ring; reduce_scatter, which Gloo lacks, is its all-to-all followed by
// Paceline's reduction, so it has Paceline's bits.
//
// One thread of Gloo's a group. Thread safety: that of Library.

#include <memory>

#include "paceline/engine/collectives/backends/backend_list.h"
#include "paceline/engine/collectives/backends/library.h"

namespace paceline {

BackendInfo gloo_info();
// Collective. Errors: kTimeout, kPeerLost, kSystem; kUnsupported where Gloo is not built.
std::unique_ptr<Library> connect_gloo(const LibraryContext& context);

}  // namespace paceline
