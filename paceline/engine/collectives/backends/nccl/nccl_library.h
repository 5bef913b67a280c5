#pragma once

// NVIDIA's NCCL, for buffers in CUDA memory: one GPU a rank (the current device when the group
// forms), on a stream of the group's own, which waits for the place of the call (DeviceOrder) or,
// where none is named, for the default stream.
//
// No 16-bit integers and no bitwise reductions. Compiled and linked against the CUDA toolkit where
// there is one; it has not been run yet (docs/backends.md). Thread safety: that of Library.

#include <memory>

#include "paceline/engine/collectives/backends/backend_list.h"
#include "paceline/engine/collectives/backends/library.h"

namespace paceline {

BackendInfo nccl_info();
// Collective. Error(kSystem) with CUDA's or NCCL's text.
std::unique_ptr<Library> connect_nccl(const LibraryContext& context);

}  // namespace paceline
