#pragma once

// The streams and events of CUDA devices, through LibTorch's generic interface to devices, so that
// this library is not linked to CUDA. A stream carries out work in order, later than the thread
// that queues the work; an event marks a position in a stream. Only wait_on_host() blocks a thread.
//
// The current device and the current stream are those of the calling thread (c10::DeviceGuard,
// c10::StreamGuard).
//
// Thread safety: every function may be called from any thread.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "paceline/engine/collectives/device_order.h"
#include "paceline/engine/core/deadline.h"

namespace paceline {

// Whether the LibTorch of this program supports devices of this type.
bool knows_device_type(c10::DeviceType type);
// Loads LibTorch's library for CUDA, which wheels from PyPI have (libtorch_cuda.so), unless the
// program is linked to it. Returns why the library cannot be loaded; empty if it is loaded, or if
// this LibTorch has no such library.
std::string load_libtorch_cuda();
// The number of CUDA devices that this process can use; 0 if LibTorch was built without CUDA.
int num_cuda_devices();
// Returns `device`, with the index of the current device if it has none. In that case throws
// Error(kUnsupported) if this LibTorch does not support such devices.
c10::Device with_index(c10::Device device);

// Returns the device that a user names: "cpu", "cuda:1", or "cuda". "cuda" means device number
// `local_rank` modulo the number of devices that this process sees; so a process that sees one
// device gets it. Calls load_libtorch_cuda() for a CUDA device. Throws Error(kInvalid) for other
// text and for a device that does not exist; Error(kUnsupported) if LibTorch was built without
// CUDA or if its library for CUDA cannot be loaded.
c10::Device choose_device(const std::string& name, int local_rank);
// Makes `device` the calling thread's current device. Does nothing for the CPU.
void set_current_device(c10::Device device);

c10::Stream current_stream_of(c10::Device device);

// The streams on which this library queues its own work, apart from the program's streams: one
// stream of each kind for each device, from LibTorch's pool.
enum class SideStream : std::uint8_t {
  kToHost,    // copies from the device to the host
  kToDevice,  // copies from the host to the device
  kGather,    // gathers of divided parameters
};
c10::Stream side_stream(c10::Device device, SideStream kind);

// A handle of an event. Copies share the event, and the last one destroys it.
class StreamEvent {
 public:
  StreamEvent() = default;  // an event that counts as reached
  // Returns an event that marks the end of the work that is queued on `stream` now.
  static StreamEvent after(const c10::Stream& stream);
  static StreamEvent after_current(c10::Device device) { return after(current_stream_of(device)); }

  // Makes work that is queued on `stream` from now on wait for the event.
  void block(const c10::Stream& stream) const;
  bool is_reached() const;
  // Blocks the calling thread. At the deadline: Error(kTimeout), whose text begins with `what`.
  void wait_on_host(Deadline deadline, const std::string& what) const;
  // Returns the event as the engine's type, which shares the ownership.
  DeviceEvent shared() const;

 private:
  struct Owned;
  std::shared_ptr<const Owned> owned_;
};

// Collects the streams on which several threads or operators produced values, so that a consumer on
// one stream can wait for all of them. If `device` is a CPU, the functions do nothing. Thread
// safety: none.
class StreamJoin {
 public:
  explicit StreamJoin(c10::Device device) : device_(device) {}

  // Call it before join(), when work is or was queued on the calling thread's current stream.
  // Returns false if this stream is noted already, or if `device` is a CPU.
  bool note() { return !device_.is_cpu() && add(current_stream_of(device_)); }
  // Makes the current stream wait for all work that is queued on the streams that note() added.
  void join() const {
    if (!streams_.empty()) wait_for_all();
  }
  void clear() { streams_.clear(); }

 private:
  bool add(const c10::Stream& stream);
  void wait_for_all() const;

  const c10::Device device_;
  std::vector<c10::Stream> streams_;
};

// Keeps `object` alive until the event has been reached. A later call of this function destroys the
// object, so the objects of the last calls live longer than necessary.
void keep_until(const StreamEvent& event, std::shared_ptr<void> object);

// Orders a call on CUDA tensors with LibTorch's streams, as c10d does with NCCL: the call starts
// after the work that is already queued on the calling thread's current stream. Work that a thread
// queues after waiting for the call will start after the call has ended. Throws
// Error(kUnsupported) if this LibTorch does not support such devices. Thread-safe like DeviceOrder.
std::shared_ptr<const DeviceOrder> order_in_current_stream(c10::Device device);

}  // namespace paceline
