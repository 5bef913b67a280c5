#pragma once

// What all ranks of a group must have chosen alike before they connect: each compares its own
// choices with every address it finds.

#include "paceline/engine/transport/connect.h"
#include "paceline/engine/transport/peer.h"

namespace paceline {

// Error(kInvalid) that names `peer` and what it chose otherwise: members, transport, encryption,
// streams.
void require_agreement(const ConnectOptions& mine, int peer, const PeerAddress& theirs);

}  // namespace paceline
