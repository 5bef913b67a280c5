#pragma once

// A connection of two ranks of a group that forms: both ends have proved that they know the secret.

#include "paceline/engine/core/fd.h"
#include "paceline/engine/core/handshake.h"

namespace paceline {

struct NewChannel {
  int peer = 0;  // as the caller says; the called end does not check it
  int channel = 0;
  Fd socket;
  SessionKeys keys;  // of a connection that is to be encrypted
};

}  // namespace paceline
