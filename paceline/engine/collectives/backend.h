#pragma once

// Carries out a group's operations. A backend is a leaf under backends/; the process group in front
// of it has checked the arguments, numbered the call and serialised it.

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
#include "paceline/engine/transport/shared_memory.h"

namespace paceline {

class FlightRecorder;

// How a wait may be spent.
struct WaitOptions {
  Deadline deadline = Deadline::never();
  bool may_spin = true;  // false on a thread that shares its core with the computation
  const FlightRecorder* recorder = nullptr;  // for told_by_records(), when the deadline comes
  Work* work = nullptr;                      // an asynchronous operation's
};

struct PointToPointCall {
  int peer = 0;  // kAnySource for a receive from any rank
  std::uint32_t tag = 0;
  Dtype dtype = Dtype::kUint8;
  std::size_t count = 0;
  std::byte* data = nullptr;                            // not written by a send
  std::uint32_t shape = 0;                              // Call::shape
  std::optional<std::vector<std::int64_t>> sizes = {};  // of a send: travel with it
  std::shared_ptr<MessagePlace> place = {};             // of a receive: gives type, count and data
  std::shared_ptr<void> keep_alive;
  bool is_blocking = false;  // the caller waits for it at once
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual const char* name() const = 0;
  // How bytes travel: "shm", "loopback", "tcp", "mpi", ..., "none" for a group of one.
  virtual const char* transport() const = 0;
  // Which ranks are on which host.
  virtual const Hosts& hosts() const = 0;
  // How it would carry out this call, and why so: lines for people.
  virtual std::string explain(const PlanRequest& request) const = 0;
  // Whether it can do `op` on memory of `device`.
  virtual bool supports(Op op, Dtype dtype, ReduceOp reduce_op, Device device) const = 0;

  // Blocks until this rank's part is done. Calls come one at a time, in the same order on every
  // rank.
  virtual void run(const Collective& call, const Fingerprint& fingerprint,
                   const WaitOptions& wait) = 0;

  // May be called from any thread at any time. A blocking call moves the message itself, and mostly
  // has when it returns.
  virtual WorkPtr send(const PointToPointCall& call, Deadline deadline) = 0;
  virtual WorkPtr receive(const PointToPointCall& call, Deadline deadline) = 0;

  // Collective, serialised like run(), of which it is the second part: `fingerprint` is that
  // call's. Error(kSystem) is every rank's, and the group goes on.
  virtual SymmetricBuffer allocate_symmetric(std::size_t bytes, Pages pages,
                                             const Fingerprint& fingerprint,
                                             const WaitOptions& wait) = 0;
  // Serialised like run(). Whether collectives on this memory of this rank need no copies, if the
  // other ranks' is like it.
  virtual bool is_symmetric(ConstBuffer buffer) = 0;

  // Serialised like run(), after that of a visit: where this process sees every rank's buffer of
  // it. Empty, on every rank alike, where they do not all lie in memory that all ranks share.
  virtual std::vector<std::byte*> seen_by_all() const = 0;

  // Local, from any thread: throws the group's failure, if there is one; otherwise returns the
  // ranks that have left it in order (Mesh::throw_if_failed).
  virtual std::vector<int> throw_if_failed() = 0;

  // Local, from any thread: fails what is under way here and tells the other ranks why. The first
  // cause stays.
  virtual void abort(const Error& cause) = 0;
  // Whether the group is known here to have failed.
  virtual bool failed() const = 0;
};

}  // namespace paceline
