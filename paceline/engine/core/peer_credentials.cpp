#include "paceline/engine/core/peer_credentials.h"

namespace paceline {

std::optional<ucred> peer_credentials(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return {};
  return peer;
}

}  // namespace paceline
