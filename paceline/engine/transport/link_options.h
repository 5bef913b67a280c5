#pragma once

// How the ranks of a group are linked, as users choose it.

#include <string>

#include "paceline/engine/transport/transport_kind.h"

namespace paceline {

struct LinkOptions {
  TransportKind transport = TransportKind::kAuto;
  // Counts this rank to a part of its host; to all of it when empty. Ranks of other parts share no
  // memory with it and send over TCP, as if on another host. For trying out many hosts on one. At
  // most 255 bytes.
  std::string host;
  // Encrypts what goes over TCP (docs/wire_formats.md, section 7); the ranks of a host trust its
  // kernel. All ranks or none; by the engine only: Error(kUnsupported) with another backend.
  bool encrypt = false;
  // How many TCP connections carry the collectives' data of two ranks, 1 to kMaxStreams (16), all
  // ranks the same: for links that one connection does not fill (docs/network.md).
  int tcp_streams = 1;
};

}  // namespace paceline
