#pragma once

// The addresses that the ranks of a group have published, and what they must agree on.

#include <functional>
#include <string>
#include <vector>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/transport/connect.h"
#include "paceline/engine/transport/peer.h"

namespace paceline {

using LookAround = std::function<void(const std::vector<int>& missing)>;

// Of all ranks, in their order; `own` is this rank's as it published it. While some are missing,
// calls `look_around` with them, which may throw: once a second, and as long as there is a parent
// to look after up to ten times. Error(kInvalid) when ranks name other members, chose other
// transports or only some of them encrypt: as soon as two of them show it, whichever others are
// missing; kTimeout names a rank that did not arrive.
std::vector<PeerAddress> fetch_addresses(const ConnectOptions& options, const std::string& own,
                                         Deadline deadline, const LookAround& look_around);

}  // namespace paceline
