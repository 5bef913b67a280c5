#include "paceline/transport/wire.h"

#include <cerrno>

#include <poll.h>

#include "paceline/core/vigil.h"
#include "paceline/transport/message.h"

namespace paceline {

bool send_whole(Wire& wire, int peer, Channel channel, std::span<const std::byte> bytes,
                Deadline deadline) {
  constexpr std::chrono::milliseconds kSlice{50};
  for (Vigil vigil; !bytes.empty();) {
    const ssize_t sent = wire.send(peer, channel, bytes, {});
    if (sent >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
      continue;
    }
    if (!would_block(errno)) return false;
    if (vigil.sees_passed(deadline)) {
      errno = ETIMEDOUT;
      return false;
    }
    Interest interest{peer, channel, POLLOUT};
    wire.wait({&interest, 1}, std::chrono::milliseconds(deadline.poll_timeout_ms(kSlice)));
  }
  return true;
}

}  // namespace paceline
