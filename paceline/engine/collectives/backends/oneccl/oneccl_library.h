#pragma once

// Intel's oneCCL on the CPU, over libfabric and without MPI, so any launcher will do. It has no
// gather and no scatter. Bitwise reductions, and min and max of floating-point numbers, in which
// NaN must win, are its all-gather or all-to-all followed by Paceline's kernel.
//
// One process a rank. oneCCL is set up by environment variables: the first group sets those that
// the user has not (CCL_ATL_TRANSPORT, CCL_PROCESS_LAUNCHER, CCL_LOCAL_RANK, CCL_LOCAL_SIZE,
// CCL_LOG_LEVEL, CCL_WORKER_OFFLOAD, CCL_PMI_FORCE_FINALIZE, FI_PROVIDER_PATH). Its own key-value
// server, by which its ranks find each other, asks for no secret. Its calls block, so a
// thread of the group makes them (blocking_calls.h), and it serves one group of a process at a
// time, so groups take turns (process_turn.h). A call that breaks off inside it, as it may when a
// peer dies, ends its use in this process: other groups over it fail.
// Thread safety: that of Library.

#include <memory>

#include "paceline/engine/collectives/backends/backend_list.h"
#include "paceline/engine/collectives/backends/library.h"

namespace paceline {

BackendInfo oneccl_info();
// Collective. Errors: those of share_id(), kTimeout at the context's deadline, and kSystem with
// oneCCL's text.
std::unique_ptr<Library> connect_oneccl(const LibraryContext& context);

}  // namespace paceline
