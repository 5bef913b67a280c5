#include "paceline/launcher/hosts/remote_input.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <unistd.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/io.h"

namespace paceline::launcher {
namespace {

constexpr std::size_t kInFlight = 256 << 10;
constexpr std::size_t kChunk = 16 << 10;

}  // namespace

RemoteInput::RemoteInput(EventLoop& loop, Fd stdin_fd, Send send)
    : loop_(loop), stdin_(std::move(stdin_fd)), send_(std::move(send)) {}

RemoteInput::~RemoteInput() {
  if (watched_) loop_.forget(stdin_.get());
}

void RemoteInput::taken(std::uint32_t bytes) {
  in_flight_ -= std::min<std::size_t>(in_flight_, bytes);
  watch();
}

void RemoteInput::tend() {
  if (is_file_) pump();
}

void RemoteInput::watch() {
  const bool wanted = stdin_ && !is_file_ && in_flight_ < kInFlight;
  if (wanted == watched_) return;
  watched_ = wanted;
  if (!wanted) return loop_.forget(stdin_.get());
  try {
    loop_.watch(stdin_.get(), [this] { pump(); });
  } catch (const Error&) {  // a plain file
    watched_ = false;
    is_file_ = true;
    pump();
  }
}

void RemoteInput::pump() {
  char buffer[kChunk];
  while (stdin_ && in_flight_ < kInFlight) {
    const ssize_t length = read_some(stdin_.get(), std::as_writable_bytes(std::span(buffer)));
    if (length < 0 && errno == EAGAIN) return;
    if (length <= 0) {
      if (watched_) loop_.forget(stdin_.get());
      watched_ = false;
      stdin_.reset();
      return send_(FrameKind::kInputEnd, {});
    }
    send_(FrameKind::kInput, {buffer, static_cast<std::size_t>(length)});
    in_flight_ += static_cast<std::size_t>(length);
    if (!is_file_) break;
  }
  if (!is_file_) watch();
}

}  // namespace paceline::launcher
