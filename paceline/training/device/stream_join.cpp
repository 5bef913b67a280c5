#include "paceline/training/device/stream_join.h"

#include <algorithm>

namespace paceline {

bool StreamJoin::add(const c10::Stream& stream) {
  if (std::ranges::find(streams_, stream) != streams_.end()) return false;
  streams_.push_back(stream);
  return true;
}

void StreamJoin::wait_for_all() const {
  const c10::Stream own = current_stream_of(device_);
  for (const c10::Stream& stream : streams_) {
    if (stream != own) StreamEvent::after(stream).block(own);
  }
}

}  // namespace paceline
