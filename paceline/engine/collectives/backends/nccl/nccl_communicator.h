#pragma once

// One communicator of NCCL, whose calls do not block. Everything that could wait for other ranks
// has a deadline: connecting, ending, and even aborting, which hangs in some versions of NCCL when
// a peer's host has vanished.
//
// Thread safety: every method may be called from any thread.

#include <atomic>
#include <functional>
#include <mutex>
#include <string>

#include "paceline/engine/collectives/backends/nccl/nccl_api.h"
#include "paceline/engine/core/deadline.h"
#include "paceline/engine/transport/mesh.h"

namespace paceline {

class NcclCommunicator {
 public:
  // Begins to connect `size` ranks, which do the same with the same `id`; is_ready() tells when
  // they are connected. Requires: the thread's current device is this rank's. Error(kSystem) with
  // NCCL's text.
  NcclCommunicator(const NcclApi& api, int size, const nccl::Id& id, int rank, std::string self);
  // Aborts it, unless it was closed or aborted.
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  // Runs `call` with the handle, alone; it may start operations. Its result is NCCL's, and
  // is_ready() must be true before the next one. Error(kAborted) after abort(), otherwise as
  // NcclApi::require().
  void call(const char* what, const std::function<int(NcclHandle)>& call);
  // Whether NCCL's host part is idle: all ranks are connected, and all calls have been queued on
  // the device. Throws the asynchronous error, if there is one.
  bool is_ready();
  // Ends it in order, for a rank whose operations have finished; aborts it if that does not succeed
  // until `deadline`.
  void close(Deadline deadline);
  // Ends all operations under way, on the device too. Returns false, after a warning, if NCCL does
  // not come back within kMostToAbort: the communicator then stays until the process ends.
  bool abort();

  static constexpr std::chrono::seconds kMostToAbort{3};

 private:
  bool run_bounded(const char* what, Deadline deadline, std::function<int()> call);

  const NcclApi& api_;
  const std::string self_;
  std::mutex mutex_;  // guards handle_ and the calls on it
  NcclHandle handle_ = nullptr;
};

}  // namespace paceline
