#pragma once

// How a payload is divided among the connections that carry a pair's data ("streams"): in blocks,
// which take turns over the streams, so that its beginning is there early and can be reduced while
// the rest comes. What is too short for that goes over the first stream, in one piece. Both ends
// know it from the length alone.
//
// Thread safety: a value.

#include <algorithm>
#include <cstddef>

namespace paceline {

class Stripes {
 public:
  // Long enough to make system calls cheap; also an encrypted record.
  static constexpr std::size_t kBlockBytes = 64 << 10;
  // The least payload that is divided.
  static constexpr std::size_t kLeastBytes = 2 * kBlockBytes;

  // Requires: streams > 0.
  Stripes(std::size_t bytes, std::size_t streams)
      : bytes_(bytes), streams_(bytes < kLeastBytes ? 1 : streams) {}

  // How many bytes go over the stream.
  std::size_t share(std::size_t stream) const {
    if (streams_ == 1) return stream == 0 ? bytes_ : 0;
    const std::size_t blocks = bytes_ / kBlockBytes, turns = blocks / streams_;
    const std::size_t last = blocks % streams_;  // the stream of the block that is none
    return (turns + (stream < last ? 1 : 0)) * kBlockBytes +
           (stream == last ? bytes_ % kBlockBytes : 0);
  }

  struct Run {
    std::size_t offset = 0, count = 0;
  };
  // Where the bytes behind the first `done` of a stream's share lie; none behind its end.
  Run next(std::size_t stream, std::size_t done) const {
    if (done >= share(stream)) return {bytes_, 0};
    if (streams_ == 1) return {done, bytes_ - done};
    const std::size_t block = done / kBlockBytes * streams_ + stream, in_it = done % kBlockBytes;
    const std::size_t end = std::min(bytes_, (block + 1) * kBlockBytes);
    return {block * kBlockBytes + in_it, end - block * kBlockBytes - in_it};
  }

 private:
  std::size_t bytes_, streams_;
};

}  // namespace paceline
