#pragma once

// How ranks reach each other, as users choose it.

#include <cstdint>
#include <string>
#include <string_view>

namespace paceline {

// kAuto: loopback for threads of one process, shared memory on one host, TCP between hosts. kUcx:
// the same, but UCX between hosts.
enum class TransportKind : std::uint8_t { kAuto, kTcp, kShm, kLoopback, kUcx };

// "auto", "tcp", "shm", "loopback", "ucx"; Error(kInvalid) names the value otherwise.
TransportKind parse_transport(const std::string& name);
std::string_view name_of(TransportKind transport);

}  // namespace paceline
