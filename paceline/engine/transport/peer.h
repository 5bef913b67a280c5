#pragma once

// What one rank publishes about itself so that the others can reach it.

#include <string>
#include <vector>

#include "paceline/engine/core/socket.h"
#include "paceline/engine/transport/cipher.h"
#include "paceline/engine/transport/transport_kind.h"
#include "paceline/engine/transport/wire.h"

namespace paceline {

struct PeerAddress {
  std::string host;                       // engine/core/host.h: host_token()
  std::string process;                    // process_token()
  std::string host_name;                  // for messages
  std::string unix_name;                  // abstract Unix socket; another for each attempt to form
  Endpoint tcp;                           // empty host: no listener at all
  CipherKind cipher = CipherKind::kNone;  // the best it can do, if it encrypts
  TransportKind transport{};              // as it was chosen
  int tcp_streams = 1;                    // that carry a pair's data over TCP
  std::vector<int> cpus;                  // where this rank may run
  // The group as this rank understands it: its members' ranks in the world, in order.
  std::vector<int> members;

  std::string encode() const;
  // Error(kCorrupt) for anything encode() does not make.
  static PeerAddress decode(const std::string& text);
};

}  // namespace paceline
