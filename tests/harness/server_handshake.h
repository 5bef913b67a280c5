#pragma once

// The server's side of the handshake, for tests that stand in for a server. The call blocks until
// the handshake is done.

#include <string_view>
#include <vector>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/system/socket.h"

namespace paceline::harness {

// Throws the same errors as authenticate_as_client().
inline void authenticate_as_server(const Fd& socket, const Secret& secret, std::string_view context,
                                   Deadline deadline) {
  ServerHandshake handshake(secret, context, peer_name(socket));
  while (!handshake.done()) {
    std::vector<std::byte> bytes(handshake.wanted());
    receive_all(socket, bytes, deadline);
    send_all(socket, handshake.feed(bytes), deadline);
  }
}

}  // namespace paceline::harness
