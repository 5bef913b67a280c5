#pragma once

// A TCP port kept for rank 0: bound but not listening. The kernel gives it to no other process, yet
// a socket that also sets SO_REUSEADDR (as every c10d store does) may bind it and listen. There is
// no moment in which the port is free.

#include <cstdint>

#include "paceline/engine/core/fd.h"

namespace paceline::launcher {

struct ReservedPort {
  Fd socket;  // keep it open as long as the port is needed
  std::uint16_t port = 0;
};

// Port 0: a free one. Error(kSystem) names a port that is taken, and how to find out by which
// process.
ReservedPort reserve_port(std::uint16_t port);

}  // namespace paceline::launcher
