#pragma once

// Who is at the other end of a Unix socket, as the kernel knows it: of a connection that was
// accepted, who connected; of one that was made, who listens. Anybody can take a name in the
// abstract namespace, so whoever connects to one looks here before it says anything.
//
// Thread safety: a free function, also for signal handlers.

#include <optional>

#include <sys/socket.h>

namespace paceline {

std::optional<ucred> peer_credentials(int socket);

}  // namespace paceline
