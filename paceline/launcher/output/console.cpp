#include "paceline/launcher/output/console.h"

#include <algorithm>
#include <cerrno>

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/io.h"

namespace paceline::launcher {

void Console::write(std::string_view bytes) {
  if (error_ != 0) return;
  pending_ += bytes;
  flush();
}

void Console::flush() {
  while (!empty() && error_ == 0) {
    pollfd entry{fd_, POLLOUT, 0};
    if (poll_for({&entry, 1}, std::chrono::milliseconds(0)) <= 0) break;
    const auto size = std::min<std::size_t>(PIPE_BUF, pending_.size() - sent_);
    const auto bytes = as_bytes(std::string_view(pending_).substr(sent_, size));
    const ssize_t written = write_some(fd_, bytes);
    if (written > 0) {
      sent_ += static_cast<std::size_t>(written);
    } else if (errno == EAGAIN) {
      break;
    } else {
      error_ = errno;
    }
  }
  if (empty() || error_ != 0) {
    pending_.clear();
    sent_ = 0;
  } else if (sent_ > kLimit) {
    pending_.erase(0, sent_);
    sent_ = 0;
  }
}

}  // namespace paceline::launcher
