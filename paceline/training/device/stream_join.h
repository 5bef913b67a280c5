#pragma once

// StreamJoin: collects the streams on which several threads or operators produced values, so that a
// consumer on one stream can wait for all of them.
//
// Thread safety: none.

#include <vector>

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "paceline/training/device/streams.h"

namespace paceline {

// If `device` is a CPU, the functions do nothing.
class StreamJoin {
 public:
  explicit StreamJoin(c10::Device device) : device_(device) {}

  // Call it before join(), when work is or was queued on the calling thread's current stream.
  // Returns false if this stream is noted already.
  bool note() { return !device_.is_cpu() && add(current_stream_of(device_)); }
  // Makes the current stream wait for all work that is queued on the noted streams.
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

}  // namespace paceline
