#pragma once

// A mesh of two ranks. The test itself acts as the other rank and holds the bare ends of the
// sockets, so that it can send what no well-behaved rank would send.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sys/socket.h>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/transport/exchange.h"
#include "paceline/engine/transport/mesh.h"

namespace paceline::harness {

struct RawMesh {
  std::unique_ptr<Mesh> mesh;  // the mesh of rank 0
  PeerSockets other;           // rank 1's ends of the sockets

  const Fd& end(Channel channel) const { return other.channels[static_cast<int>(channel)]; }
  void send(Channel channel, const void* bytes, std::size_t count) const {
    if (::send(end(channel).get(), bytes, count, MSG_NOSIGNAL) != static_cast<ssize_t>(count)) {
      throw system_error("send()");
    }
  }
  // Closes the sockets, as the kernel does when a process dies.
  void die() {
    for (Fd& fd : other.channels) fd.reset();
  }
};

// `control`: the cipher of rank 0's end of the control channel.
inline RawMesh make_raw_mesh(int streams = 1, std::unique_ptr<Cipher> control = nullptr) {
  RawMesh raw;
  auto wire = std::make_unique<SocketWire>(2);
  for (int channel = 0; channel < kNumChannels + streams - 1; ++channel) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) {
      throw system_error("socketpair()");
    }
    const bool is_control = static_cast<Channel>(channel) == Channel::kControl;
    wire->connect(1, static_cast<Channel>(channel), Fd(ends[0]),
                  is_control ? std::move(control) : nullptr);
    raw.other.channels[channel].reset(ends[1]);
  }
  std::vector<PeerAddress> peers(2);
  for (auto& peer : peers) peer.host_name = "box";
  raw.mesh = std::make_unique<Mesh>("world", 0, std::move(peers), std::move(wire));
  return raw;
}

inline MessageHeader header_of(std::uint64_t bytes) {
  MessageHeader header;
  header.payload_bytes = bytes;
  return header;
}

// Accepts every header.
inline constexpr auto kNothing = [](int, const MessageHeader&, bool) {};

// Runs the exchange until everything that was posted is done, and returns nullopt. If that fails,
// returns the error that ended the exchange, or Error(kTimeout) after `limit`.
inline std::optional<Error> run_until_idle(Exchange& exchange, Deadline::Clock::duration limit) {
  try {
    exchange.run_until([&] { return exchange.idle(); }, kNothing, Deadline::after(limit), [] {});
  } catch (const Error& error) {
    return error;
  }
  if (!exchange.idle()) return Error(ErrorCode::kTimeout, "not idle");
  return {};
}

}  // namespace paceline::harness
