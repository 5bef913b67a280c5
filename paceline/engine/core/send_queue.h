#pragma once

// Bytes on their way into a socket on which no thread may wait: it takes some now, and the rest
// once poll() reports room (POLLOUT).
//
// Thread safety: none.

#include <cstddef>
#include <span>
#include <vector>

namespace paceline {

class SendQueue {
 public:
  bool empty() const { return sent_ == bytes_.size(); }
  std::size_t size() const { return bytes_.size() - sent_; }
  void add(std::span<const std::byte> bytes);
  // Without a copy where nothing waits yet.
  void add(std::vector<std::byte>&& bytes);
  // Sends what `socket` takes now. False and errno when the connection is broken.
  bool flush(int socket);

 private:
  std::vector<std::byte> bytes_;
  std::size_t sent_ = 0;  // of them
};

}  // namespace paceline
