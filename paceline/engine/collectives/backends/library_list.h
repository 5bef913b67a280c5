#pragma once

// The communication libraries that Paceline knows, including those that this build lacks, and those
// that higher layers have registered. Thread safety: every function may be called from any thread.

#include <functional>
#include <memory>
#include <vector>

#include "paceline/engine/collectives/backends/backend_list.h"
#include "paceline/engine/collectives/backends/library.h"

namespace paceline {

struct LibraryEntry {
  BackendInfo info;
  // Connects the ranks of a group that chose the library. Collective.
  std::function<std::unique_ptr<Library>(const LibraryContext&)> connect;
};

std::vector<LibraryEntry> list_libraries();
// Makes a library available to groups of this process. Error(kInvalid) if the name is taken.
void register_library(LibraryEntry entry);

// Gloo over TCP (Debian's libgloo-dev): all operations and types. Sums of 16-bit floats are rounded
// after every step of Gloo's ring. Gloo lacks reduce_scatter, so its all-to-all moves the
// contributions and Paceline's kernel reduces them; the results have the bits of Paceline's engine.
//
// For each group, Gloo runs one thread, and Paceline runs another one, which watches the peers
// (RunWatch). Thread safety: that of Library.
BackendInfo gloo_info();
// Collective. Defined only if this build has Gloo. Errors: kTimeout, kPeerLost, kSystem.
std::unique_ptr<Library> connect_gloo(const LibraryContext& context);

// MPI (Open MPI or MPICH, chosen when Paceline is built), under its own launcher: all operations
// and types, at most 2^31-1 elements per rank in one call. This backend starts MPI's non-blocking
// collectives and polls them, so that deadlines hold and a dead peer is noticed; where MPI's
// reductions differ from Paceline's (16-bit floats, bool, NaN in min and max), MPI calls Paceline's
// kernel.
//
// After an error MPI may continue to read and write the buffers of the failed call until the
// process ends, because a collective cannot be cancelled. mpirun itself ends a job when one of its
// ranks has died. Thread safety: that of Library; MPI must offer MPI_THREAD_MULTIPLE.
BackendInfo mpi_info();
// Collective. Defined only if this build has MPI. Errors: kInvalid if MPI's world is not the job's
// (they are equal only under MPI's own launcher); kUnsupported if MPI does not offer
// MPI_THREAD_MULTIPLE; kSystem for MPI's own errors.
std::unique_ptr<Library> connect_mpi(const LibraryContext& context);

// Intel's oneCCL on the CPU, over libfabric and without MPI, so any launcher will do. oneCCL has no
// gather and no scatter. Bitwise reductions, and min and max of floating-point numbers (in which
// NaN must win), are done by oneCCL's all-gather or all-to-all, followed by Paceline's kernel.
//
// Each rank must be a process of its own. oneCCL is configured by environment variables; the first
// group sets those that the user has not set (CCL_ATL_TRANSPORT, CCL_PROCESS_LAUNCHER,
// CCL_LOCAL_RANK, CCL_LOCAL_SIZE, CCL_LOG_LEVEL, CCL_WORKER_OFFLOAD, CCL_PMI_FORCE_FINALIZE,
// FI_PROVIDER_PATH). oneCCL's ranks find each other through its own key-value server, which
// requires no secret. oneCCL's calls block, so a thread of the group makes them (blocking_calls.h).
// oneCCL serves one group of a process at a time, so groups take turns (ProcessTurn). A call that
// is abandoned inside oneCCL, for example because a peer died, makes oneCCL unusable in this
// process: other groups that use oneCCL fail. Thread safety: that of Library.
BackendInfo oneccl_info();
// Collective. Defined only if this build has oneCCL. Errors: those of share_id() and take_turns(),
// kTimeout at the context's deadline, and kSystem with oneCCL's text.
std::unique_ptr<Library> connect_oneccl(const LibraryContext& context);

// NVIDIA's NCCL, for buffers in CUDA memory. NCCL and the CUDA runtime are loaded when a group
// chooses this backend. Each rank uses one GPU: the current device when the group forms or, if that
// is 0, the GPU of its local rank. Each group has a stream of its own, which waits for the event of
// the call's DeviceOrder or, if the call has none, for the default stream. A call with a Work is
// queued on the stream and watched; a call without a Work waits for its result.
//
// NCCL has no reductions of 16-bit integers and no bitwise reductions. This backend has been run on
// stand-ins for NCCL and CUDA only, not on a GPU (docs/network.md). Thread safety: that of Library.
BackendInfo nccl_info();
// Collective. Errors: on every rank, kUnsupported if a rank cannot load a library, and kInvalid for
// different versions of NCCL, two ranks on one GPU, or a GPU that cannot be used; kTimeout; kSystem
// with CUDA's or NCCL's text.
std::unique_ptr<Library> connect_nccl(const LibraryContext& context);

}  // namespace paceline
