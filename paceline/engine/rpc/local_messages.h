#pragma once

// Messages of a worker to itself: the objects wait here while their tickets are on the way.
//
// Thread safety: all functions.

#include <cstdint>

#include "paceline/engine/rpc/outgoing.h"

namespace paceline::rpc {

class LocalMessages {
 public:
  // A ticket for the message, which take() redeems once.
  static std::uint64_t keep(OutgoingPointer message);
  // Error(kCorrupt) for a ticket that this process has not given out.
  static OutgoingPointer take(std::uint64_t ticket);
  // Of a ticket that may have been lost.
  static void discard(std::uint64_t ticket);
};

}  // namespace paceline::rpc
