#pragma once

// Messages in GPU memory between two ranks of a group.
//
// The messages from one rank to another use a communicator and a stream of their own on both ranks.
// So on the device a message waits only for earlier work of its caller's stream, and for earlier
// messages from the same rank to the same rank; sends and receives never wait for each other.
//
// NCCL matches messages by their order alone. So the engine first sends an announcement of each
// message, matches it with a receive by sender and tag, and compares type, count and shape. The
// announcement contains the message's number in its direction, and the id by which the two ranks
// connect when the first message is received. The ranks queue the messages of a direction in the
// order of their numbers, that is, in the order of sending: a receive waits until this rank has
// posted receives for all earlier messages of the sender.
//
// A thread connects the ranks and queues the messages, so neither a caller nor a thread of the
// engine waits for NCCL.
//
// Thread safety: every method may be called from any thread; the destructor by one thread only.

#include <memory>
#include <vector>

#include "paceline/engine/collectives/backend.h"
#include "paceline/engine/collectives/backends/library.h"
#include "paceline/engine/collectives/backends/nccl/device_watch.h"
#include "paceline/engine/collectives/backends/nccl/nccl_api.h"
#include "paceline/engine/collectives/backends/nccl/nccl_communicator.h"
#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/transport/mesh.h"

namespace paceline {

class NcclMessages {
 public:
  // `device`: the GPU of the group. `watch` completes the messages that the device has finished.
  // Requires: `watch` and the mesh of the context outlive this object.
  NcclMessages(const NcclApi& api, const LibraryContext& context, int device, DeviceWatch& watch);
  // Requires: the device has finished all messages, or they were aborted.
  ~NcclMessages();
  NcclMessages(const NcclMessages&) = delete;
  NcclMessages& operator=(const NcclMessages&) = delete;

  // Library::start(). Requires: the buffer is on the device.
  WorkPtr start(Op op, const PointToPointCall& call, Deadline deadline);
  // For a thread that waits for the device: throws Error(kPeerLost) if a message on the device is
  // unfinished one second after its other rank was first listed in `left`.
  void require_peers(const std::vector<int>& left);
  // The communicators that have been made.
  NcclCommunicator::Several communicators() const;
  // Ends, with Error(kAborted), the messages that have not been queued on the device. Returns the
  // connected communicators, to be closed when the device has finished the other messages.
  NcclCommunicator::Several stop();

 private:
  struct State;

  const std::shared_ptr<State> state_;  // owners: this object, its thread, and announcements
};

}  // namespace paceline
