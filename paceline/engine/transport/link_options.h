#pragma once

// The options of the links between a group's ranks: transport, host, encryption, number of TCP
// streams.

#include <cstdint>
#include <string>

namespace paceline {

// How the ranks of a group exchange bytes. kAuto: loopback for threads of one process, shared
// memory on one host, TCP between hosts. kUcx: shared memory on one host, UCX between hosts.
enum class TransportKind : std::uint8_t { kAuto, kTcp, kShm, kLoopback, kUcx };

struct LinkOptions {
  TransportKind transport = TransportKind::kAuto;
  // Names a part of the host, to which this rank then belongs; empty for the whole host. Ranks of
  // different parts share no memory and communicate over TCP, as if they were on different hosts.
  // Use it to try out many hosts on one machine. At most 255 bytes.
  std::string host = {};
  // Encrypts the TCP connections (docs/network.md); the ranks of a host trust its
  // kernel. All ranks must set the same value. Only the engine's own connections can be encrypted:
  // Error(kUnsupported) with another backend.
  bool encrypt = false;
  // How many TCP connections carry the collectives' data between two ranks, 1 to kMaxStreams (16),
  // the same on all ranks. For links that one connection does not fill (docs/network.md).
  int tcp_streams = 1;
};

}  // namespace paceline
