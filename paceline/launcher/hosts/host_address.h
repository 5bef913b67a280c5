#pragma once

// Which hosts are this machine, and under which address the others reach it.

#include <string>

namespace paceline::launcher {

// True for loopback names, this machine's own name, and whatever resolves to an address of one of
// its interfaces.
bool is_this_machine(const std::string& host);

// The first address that `host` resolves to, as a number; empty when it does not resolve.
std::string numeric_address(const std::string& host);

// This machine's address on the way to `host`, as the kernel would choose it; empty when there is
// no way or the name does not resolve. Nothing is sent.
std::string own_address_towards(const std::string& host);

}  // namespace paceline::launcher
