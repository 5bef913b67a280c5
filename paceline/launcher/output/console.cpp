#include "paceline/launcher/output/console.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>

#include <fcntl.h>
#include <fmt/format.h>
#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/core/system/io.h"

namespace paceline::launcher {

Console::Console(int fd) : fd_(fd) {
  if (isatty(fd) == 0) return;
  const std::string path = fmt::format("/proc/self/fd/{}", fd);
  terminal_ = Fd(open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

void Console::write(std::string_view bytes) {
  if (error_ != 0) return;
  pending_ += bytes;
  flush();
}

void Console::flush() {
  while (!empty() && error_ == 0) {
    pollfd entry{fd(), POLLOUT, 0};
    if (poll_for({&entry, 1}, std::chrono::milliseconds(0)) <= 0) break;
    const auto size = std::min<std::size_t>(PIPE_BUF, pending_.size() - sent_);
    const auto bytes = as_bytes(std::string_view(pending_).substr(sent_, size));
    const ssize_t written = write_some(fd(), bytes);
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

Consoles::~Consoles() {
  if (!log_.read_end) return;
  log::write_to(STDERR_FILENO);
  pass_log_on();
  loop_.forget(log_.read_end.get());
}

void Consoles::take_log() {
  log_ = make_pipe();
  for (const Fd* end : {&log_.read_end, &log_.write_end}) fcntl(end->get(), F_SETFL, O_NONBLOCK);
  loop_.watch(log_.read_end.get(), [this] { pass_log_on(); });
  log::write_to(log_.write_end.get());
}

void Consoles::pass_log_on() {
  char lines[PIPE_BUF];
  ssize_t length = 0;
  while ((length = read_some(log_.read_end.get(), std::as_writable_bytes(std::span(lines)))) > 0)
    err_.console.write({lines, static_cast<std::size_t>(length)});
}

// Waits for the reader, which pauses only while megabytes are in transit, for example those of a
// timeline. An error is ignored: if the reader has ended, this host's part of the job ends anyway.
void Consoles::tell(FrameKind kind, std::string_view payload) {
  if (notices_fd_ >= 0) write_whole(notices_fd_, as_bytes(encode_frame(kind, payload)));
}

void Consoles::say(FrameKind kind, const std::string& text) {
  if (notices_fd_ < 0) return err_.console.write(text);
  if (!text.empty()) tell(kind, text);
}

void Consoles::tell_leads(const Endpoint& meeting) { tell(FrameKind::kLeads, encode(meeting)); }

void Consoles::tell_over(int exit_code) {
  tell(FrameKind::kOver, std::string(1, static_cast<char>(exit_code)));
}

void Consoles::tell_timeline(const std::string& packed) { tell(FrameKind::kTimeline, packed); }

std::string Consoles::lost() const {
  for (const Watched* one : {&out_, &err_}) {
    const int error = one->console.error();
    if (error == 0 || error == EPIPE) continue;
    return fmt::format("{}: {}", one == &out_ ? "stdout" : "stderr", std::strerror(error));
  }
  return "";
}

void Consoles::watch_for_room() {
  for (Watched* one : {&out_, &err_}) {
    const bool wanted = !one->console.empty();
    if (wanted == one->watched) continue;
    one->watched = wanted;
    if (wanted) {
      loop_.watch(
          one->console.fd(), [one] { one->console.flush(); }, EPOLLOUT);
    } else {
      loop_.forget(one->console.fd());
    }
  }
}

}  // namespace paceline::launcher
