#include "paceline/engine/core/send_queue.h"

#include <cerrno>
#include <utility>

#include "paceline/engine/core/io.h"

namespace paceline {

void SendQueue::add(std::span<const std::byte> bytes) {
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
}

void SendQueue::add(std::vector<std::byte>&& bytes) {
  if (!empty()) return add(std::span<const std::byte>(bytes));
  bytes_ = std::move(bytes);
  sent_ = 0;
}

bool SendQueue::flush(int socket) {
  while (!empty()) {
    const ssize_t sent = send_some(socket, std::span<const std::byte>(bytes_).subspan(sent_));
    if (sent < 0) return errno == EAGAIN;
    sent_ += static_cast<std::size_t>(sent);
  }
  bytes_ = {};
  sent_ = 0;
  return true;
}

}  // namespace paceline
