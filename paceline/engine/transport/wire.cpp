#include "paceline/engine/transport/wire.h"

#include <cerrno>
#include <cstddef>

#include <poll.h>

#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/core/check.h"

namespace paceline {

std::size_t send_until(Wire& wire, int peer, Channel channel, std::span<const std::byte> bytes,
                       Deadline deadline) {
  constexpr std::chrono::milliseconds kSlice{50};
  std::size_t done = 0;
  for (Vigil vigil; done < bytes.size();) {
    const ssize_t sent = wire.send(peer, channel, bytes.subspan(done), {});
    if (sent >= 0) {
      done += static_cast<std::size_t>(sent);
      continue;
    }
    if (!would_block(errno)) break;
    if (vigil.sees_passed(deadline)) {
      errno = ETIMEDOUT;
      break;
    }
    Interest interest{peer, channel, POLLOUT};
    wire.wait({&interest, 1}, std::chrono::milliseconds(deadline.poll_timeout_ms(kSlice)));
  }
  return done;
}

bool send_whole(Wire& wire, int peer, Channel channel, std::span<const std::byte> bytes,
                Deadline deadline) {
  return send_until(wire, peer, channel, bytes, deadline) == bytes.size();
}

bool would_block(int error) { return error == EAGAIN; }

TransportKind parse_transport(const std::string& name) {
  if (name == "auto") return TransportKind::kAuto;
  if (name == "tcp") return TransportKind::kTcp;
  if (name == "shm") return TransportKind::kShm;
  if (name == "loopback") return TransportKind::kLoopback;
  if (name == "ucx") return TransportKind::kUcx;
  fail(ErrorCode::kInvalid,
       "transport '{}' is unknown; choose auto, shm, tcp, loopback or ucx "
       "(--transport, PACELINE_TRANSPORT)",
       name);
}

std::string_view name_of(TransportKind transport) {
  constexpr std::string_view kNames[] = {"auto", "tcp", "shm", "loopback", "ucx"};
  return kNames[static_cast<std::size_t>(transport)];
}

}  // namespace paceline
