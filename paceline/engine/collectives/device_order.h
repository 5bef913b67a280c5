#pragma once

// The place of an operation on device memory among the device's other work (DeviceOrder), its
// variant for an operation that runs on copies in host memory (HostCopies), and the driver of
// operations that make progress only while a thread waits for them (Progress).

#include <memory>

#include "paceline/engine/core/deadline.h"

namespace paceline {

// An event of a device's library, destroyed with its last owner.
using DeviceEvent = std::shared_ptr<void>;

// The place of a collective on a device's memory among the device's other work. Threads queue work
// on the device's streams; the device carries it out later, each stream in order. An *event* marks
// a point in a stream, and a stream can be made to wait for an event. Neither blocks a thread.
//
// The layer that knows the caller's streams implements this class
// (paceline/training/tensor/tensor_view.h); the device's library calls it. Events are the device's
// own (cudaEvent_t), untyped, because the engine does not depend on CUDA.
//
// Thread safety: every method may be called from any thread.
class DeviceOrder {
 public:
  virtual ~DeviceOrder() = default;

  // The event in the caller's stream at the time of the call. The library's stream waits for this
  // event before it touches a buffer. Valid as long as this object exists.
  virtual void* ready() const = 0;
  // Makes the calling thread's stream wait for `event`.
  virtual void wait_for(void* event) const = 0;
};

class Work;

// Advances operations that make progress only while a thread waits for them.
class Progress {
 public:
  virtual ~Progress() = default;
  // Advances operations until `work` has completed, `limit` has passed, or another thread advances
  // them.
  virtual void progress(const Work& work, Deadline limit) = 0;
};

// The order of a collective on device memory that is carried out on copies in host memory, because
// the group has no backend for the device. The buffers of the call are the copies. The thread that
// carries out the call calls the functions in this order: fetch(), the collective, deliver(),
// settle().
//
// Thread safety: only that thread calls these functions.
class HostCopies : public DeviceOrder {
 public:
  // Waits until the copies have the device's values. Error(kTimeout) at the deadline.
  virtual void fetch(Deadline deadline) const = 0;
  // Queues the copying of the results to the device; returns an event after the copying.
  virtual DeviceEvent deliver() const = 0;
  // Waits until the results have been written. Error(kTimeout) at the deadline.
  virtual void settle(Deadline deadline) const = 0;
};

}  // namespace paceline
