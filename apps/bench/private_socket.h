#pragma once

// Unix sockets between processes of one user: a random name in Linux's abstract namespace, which
// vanishes with its last descriptor. The kernel tells each end who the other is.

#include <string>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/fd.h"

namespace paceline::bench {

struct PrivateListener {
  std::string name;
  Fd socket;
};
PrivateListener listen_private();

// Error(kTimeout) when no process listens, kInvalid when another user does.
Fd connect_private(const std::string& name, Deadline deadline);

// The next connection of this user; those of others are closed. Empty when none came in time.
Fd accept_private(const Fd& listener, Deadline deadline);

}  // namespace paceline::bench
