#pragma once

// The place of a collective on a device's memory among the device's other work. A device carries
// out later, stream by stream, what threads have given it; an *event* marks a place in a stream,
// and a stream can be told to wait for one. Neither makes a thread wait.
//
// The layer that knows the caller's streams implements this
// (paceline/training/tensor/stream_order.h); the device's library asks for it. Events are the
// device's own (cudaEvent_t), untyped: the engine knows no CUDA.

#include <memory>

namespace paceline {

// The last owner destroys the event.
using DeviceEvent = std::shared_ptr<void>;

// Thread safety: every method may be called from any thread.
class DeviceOrder {
 public:
  virtual ~DeviceOrder() = default;

  // Where the caller's stream was when the call was made: the library's stream waits for it before
  // it touches a buffer. Valid as long as this object.
  virtual void* ready() const = 0;
  // The calling thread's stream waits for `event`.
  virtual void wait_for(void* event) const = 0;
};

}  // namespace paceline
