#pragma once

// One NCCL communicator, whose calls do not block, and the translation of a group's calls into
// calls of NCCL, which queue operations on a stream. Everything that may wait for other ranks has a
// deadline: connecting, closing, and even aborting, because ncclCommAbort() hangs in some versions
// of NCCL when a peer's host has vanished.
//
// Thread safety: every method of a communicator may be called from any thread. The other functions
// keep no state of their own, but only one of them at a time may use a communicator.

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "paceline/engine/collectives/backends/nccl/nccl_api.h"
#include "paceline/engine/collectives/collective.h"
#include "paceline/engine/core/deadline.h"
#include "paceline/engine/transport/mesh.h"

namespace paceline {

class NcclCommunicator {
 public:
  // Begins to connect `size` ranks, all of which pass the same `id`; is_ready() returns true once
  // they are connected. Requires: the thread's current device is this rank's. Error(kSystem) with
  // NCCL's text.
  NcclCommunicator(const NcclApi& api, int size, const nccl::Id& id, int rank, std::string self);
  // Aborts the communicator unless it was closed or aborted.
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  // Calls `call` with the handle, while no other call uses the communicator. `call` may start
  // operations, and returns NCCL's code. Before the next call, is_ready() must have returned true.
  // Error(kAborted) after abort(), otherwise as NcclApi::require().
  void call(const char* what, const std::function<int(NcclHandle)>& call);
  // Whether NCCL has no work left on the host: all ranks are connected, and all calls have been
  // queued on the device. Throws NCCL's asynchronous error, if any; after abort(), Error(kAborted).
  bool is_ready();
  using Several = std::vector<std::shared_ptr<NcclCommunicator>>;
  // Closes communicators whose operations have finished. Aborts a communicator if closing it
  // fails, or if its other ranks have not closed it by `deadline`. The ranks need not close several
  // communicators in the same order.
  static void close(const Several& all, Deadline deadline);
  // Ends all operations under way, also on the device. If NCCL does not return within kAbortLimit,
  // logs a warning and returns false: the communicator then exists until the process ends.
  bool abort();
  // Aborts all communicators at the same time, which takes no longer than one abort.
  static void abort(const Several& all);

  static constexpr std::chrono::seconds kAbortLimit{3};

 private:
  bool begin_to_close();
  void end_closing(Deadline deadline);
  bool run_bounded(const char* what, Deadline deadline, std::function<int()> call);

  const NcclApi& api_;
  const std::string self_;
  std::mutex mutex_;  // guards handle_ and the calls on it
  NcclHandle handle_ = nullptr;
};

// A rank of a group, and the communicator and stream that carry out its calls.
struct NcclEndpoint {
  const NcclApi& api;
  NcclHandle communicator;
  CudaStream stream;
  int rank;
  int world_size;
  std::string_view self;  // "rank 1", for errors
};

// Whether NCCL can carry out the operation. NCCL can move elements of any type, but cannot reduce
// int16 and has no bitwise reductions. A bool is 0 or 1, so its sum is the maximum and its product
// the minimum.
bool nccl_supports(Op op, Dtype dtype, ReduceOp reduce_op);

// Queues the call. Requires: nccl_supports(). Errors: those of NcclApi::require().
void queue_call(const Collective& call, const NcclEndpoint& place);

// Groups several calls of NCCL: none of them waits for another, and the device starts them
// together.
class NcclBatch {
 public:
  NcclBatch(const NcclApi& api, std::string_view self);
  ~NcclBatch();  // ends the batch, if end() was not called
  NcclBatch(const NcclBatch&) = delete;
  NcclBatch& operator=(const NcclBatch&) = delete;
  void end();

 private:
  const NcclApi& api_;
  const std::string_view self_;
  bool is_open_ = true;
};

}  // namespace paceline
