#include "paceline/launcher/output/consoles.h"

#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <unistd.h>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/io.h"

namespace paceline::launcher {

// Where the reader is gone, so is this host's part.
void write_notice(int notices_fd, std::string_view frames) {
  write_whole(notices_fd, as_bytes(frames));
}

void Consoles::say(FrameKind kind, const std::string& text) {
  if (notices_fd_ < 0) return err_.console.write(text);
  if (!text.empty()) write_notice(notices_fd_, encode_frame(kind, text));
}

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
