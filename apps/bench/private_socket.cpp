#include "apps/bench/private_socket.h"

#include <unistd.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/peer_credentials.h"
#include "paceline/engine/core/secret.h"
#include "paceline/engine/core/socket.h"

namespace paceline::bench {
namespace {

constexpr int kNameBytes = 16;

bool is_mine(const Fd& socket) {
  const auto peer = peer_credentials(socket.get());
  return peer && peer->uid == geteuid();
}

}  // namespace

PrivateListener listen_private() {
  std::string name = fmt::format("paceline-bench-{}", random_hex(kNameBytes));
  Fd socket = listen_unix(name);
  return {std::move(name), std::move(socket)};
}

Fd connect_private(const std::string& name, Deadline deadline) {
  Fd socket = connect_unix(name, deadline);
  check(is_mine(socket), "{} belongs to another user", name);
  return socket;
}

Fd accept_private(const Fd& listener, Deadline deadline) {
  for (;;) {
    Fd socket = accept_connection(listener, deadline);
    if (!socket || is_mine(socket)) return socket;
  }
}

}  // namespace paceline::bench
