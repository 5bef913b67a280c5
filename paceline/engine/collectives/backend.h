#pragma once

// A backend carries out a group's operations. Each backend is a folder under backends/. Before the
// process group calls run(), it checks the arguments, waits for the call's turn and numbers it.

#include <memory>
#include <string>
#include <vector>

#include "paceline/engine/collectives/buffer.h"
#include "paceline/engine/collectives/call.h"
#include "paceline/engine/collectives/collective.h"
#include "paceline/engine/collectives/selection/planner.h"
#include "paceline/engine/collectives/work.h"
#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/telemetry/flight_recorder.h"
#include "paceline/engine/transport/shared_memory.h"

namespace paceline {

class FlightRecorder;

// How a thread may wait for an operation.
struct WaitOptions {
  Deadline deadline = Deadline::never();
  bool may_spin = true;  // false on a thread that shares its core with the computation
  const FlightRecorder* recorder = nullptr;  // its verdict is part of the error at the deadline
  // The Work of an asynchronous operation; otherwise null.
  Work* work = nullptr;
};

struct PointToPointCall {
  int peer = 0;  // kAnySource for a receive from any rank
  std::uint32_t tag = 0;
  Dtype dtype = Dtype::kUint8;
  std::size_t count = 0;
  std::byte* data = nullptr;  // a send does not write to it
  Device device = Device::kCpu;
  // Set only in the engine's message that announces a message in device memory: the length of
  // `data`, which is then in host memory. The library of the device moves the elements.
  std::size_t announcement_bytes = 0;
  std::shared_ptr<const DeviceOrder> order = {};  // for device memory: CallOptions::order
  std::uint32_t shape = 0;                        // Call::shape
  // Set only in a send: the sizes travel with the message.
  std::optional<std::vector<std::int64_t>> sizes = {};
  // Set only in a receive: allocates `data`; the message then determines the type and the count.
  std::shared_ptr<MessageAllocator> allocator = {};
  std::shared_ptr<void> keep_alive;
  bool is_blocking = false;  // the caller waits for the message at once
  // For device memory: the Work ends only when the device has finished.
  bool waits_for_device = false;
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual const char* name() const = 0;
  // The transport of bytes: "shm", "loopback", "tcp", "mpi", ..., or "none" for a group of one
  // rank.
  virtual const char* transport() const = 0;
  // The ranks of each host.
  virtual const Hosts& hosts() const = 0;
  // Explains to the user, in a few lines, how the backend would carry out this call, and why.
  virtual std::string explain(const PlanRequest& request) const = 0;
  // Whether the backend supports `op` on memory of `device`.
  virtual bool supports(Op op, Dtype dtype, ReduceOp reduce_op, Device device) const = 0;
  // Whether run() takes coalesced calls on memory of `device` (Collective::parts).
  virtual bool takes_parts(Device /*device*/) const { return false; }
  // Whether send() and receive() take messages in memory of `device`.
  virtual bool takes_messages(Device device) const { return device == Device::kCpu; }

  // Blocks until this rank's part is done. Calls come one at a time, in the same order on every
  // rank.
  virtual void run(const Collective& call, const Fingerprint& fingerprint,
                   const WaitOptions& wait) = 0;

  // May be called from any thread at any time. If call.is_blocking, the calling thread moves
  // the message, and the returned Work has usually completed.
  virtual WorkPtr send(const PointToPointCall& call, Deadline deadline) = 0;
  virtual WorkPtr receive(const PointToPointCall& call, Deadline deadline) = 0;

  // Collective, serialised like run(). Called right after the run() of the allocation, with the
  // same `fingerprint`. If any rank lacks memory, every rank throws Error(kSystem), and the group
  // can continue.
  virtual SymmetricBuffer allocate_symmetric(std::size_t bytes, Pages pages,
                                             const Fingerprint& fingerprint,
                                             const WaitOptions& wait) = 0;
  // Whether collectives on this memory need no copies, provided that the other ranks' memory is
  // symmetric as well. Serialised like run().
  virtual bool is_symmetric(ConstBuffer buffer) = 0;

  // Called after the run() of a visit, and serialised like run(). Returns the address of every
  // rank's visited buffer in this process; empty on every rank unless all buffers lie in one
  // symmetric allocation.
  virtual std::vector<std::byte*> visited_addresses() const = 0;

  // Local; may be called from any thread. Throws the group's failure, if there is one; otherwise
  // returns the ranks that have left the group without a failure (Mesh::throw_if_failed).
  virtual std::vector<int> throw_if_failed() = 0;

  // Local; may be called from any thread. Fails the operations under way on this rank and sends the
  // cause to the other ranks. If the group has already failed, it keeps the first cause.
  virtual void abort(const Error& cause) = 0;
  // Local. Tells the other ranks why this rank is about to leave the group (Mesh::foretell).
  virtual void foretell(const std::string& why) = 0;
  // Whether this rank knows that the group has failed.
  virtual bool failed() const = 0;
};

}  // namespace paceline
