#include "paceline/launcher/process/stdin_relay.h"

#include <cerrno>

#include <poll.h>
#include <unistd.h>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/io.h"

namespace paceline::launcher {
namespace {

// At most PIPE_BUF, so that a non-blocking write takes all or nothing.
constexpr std::size_t kInputChunk = 4096;

}  // namespace

int StdinRelay::poll_fd() const {
  if (!to_rank_) return -1;
  if (!pending_.empty()) return to_rank_.get();
  return in_foreground() ? terminal_ : -1;
}

bool StdinRelay::waits_for_foreground() const {
  return to_rank_ && pending_.empty() && !in_foreground();
}

bool StdinRelay::in_foreground() const { return tcgetpgrp(terminal_) == getpgrp(); }

short StdinRelay::poll_events() const { return pending_.empty() ? POLLIN : POLLOUT; }

void StdinRelay::pass_on() {
  if (pending_.empty()) {
    pending_.resize(kInputChunk);
    const ssize_t length = read_some(terminal_, std::as_writable_bytes(std::span(pending_)));
    pending_.resize(length > 0 ? static_cast<std::size_t>(length) : 0);
    if (length == 0 || (length < 0 && errno != EAGAIN)) return close();
  }
  if (pending_.empty()) return;
  const ssize_t written = write_some(to_rank_.get(), as_bytes(pending_));
  if (written >= 0) pending_.erase(0, static_cast<std::size_t>(written));
  if (written < 0 && errno != EAGAIN) close();
}

}  // namespace paceline::launcher
