#pragma once

// The names of the transports, for options and messages.
//
// Thread safety: pure functions.

#include <string>
#include <string_view>

#include "paceline/engine/transport/link_options.h"

namespace paceline {

// "auto", "tcp", "shm", "loopback", "ucx"; any other name gives Error(kInvalid), which names it.
TransportKind parse_transport(const std::string& name);
std::string_view name_of(TransportKind transport);

}  // namespace paceline
