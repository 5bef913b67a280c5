#include "paceline/output/consoles.h"

#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <unistd.h>

#include "paceline/core/bytes.h"
#include "paceline/core/io.h"
#include "paceline/messages/remote_frames.h"

namespace paceline::launch {

// Where the reader is gone, this host's part is, too.
void write_notice(int notices_fd, std::string_view frames) {
  write_whole(notices_fd, as_bytes(frames));
}

void Consoles::say(const std::string& text) {
  if (notices_fd_ < 0) return err_.console.write(text);
  if (!text.empty()) write_notice(notices_fd_, encode_frame(FrameKind::kSay, text));
}

void Consoles::say_culprit(const std::string& text, const RankEnd& culprit, int generation) {
  if (notices_fd_ < 0) return say(text);
  const Culprit report{.exit_code = static_cast<std::uint8_t>(culprit.status()),
                       .signal = culprit.signal,
                       .generation = generation,
                       .at = clock_reading(culprit.at).count(),
                       .report = text};
  write_notice(notices_fd_, encode_frame(FrameKind::kCulprit, encode(report)));
}

void Consoles::say_over(int exit_code) {
  if (notices_fd_ < 0) return;
  const std::string payload(1, static_cast<char>(exit_code));
  write_notice(notices_fd_, encode_frame(FrameKind::kOver, payload));
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

}  // namespace paceline::launch
