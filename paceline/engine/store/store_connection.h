#pragma once

// One client's end in the TCP server: bytes in, requests out, replies in, bytes out, never waiting.
// Until the handshake is done it keeps at most 72 bytes of the peer's; after that, at most one
// frame and what one read brings.
//
// Thread safety: none; the server's loop owns it.

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "paceline/engine/core/fd.h"
#include "paceline/engine/core/handshake.h"
#include "paceline/engine/core/send_queue.h"
#include "paceline/engine/store/store_protocol.h"

namespace paceline {

class StoreConnection {
 public:
  StoreConnection(Fd socket, const Secret& secret);

  // Takes what the socket has, within a bound that keeps one client from starving the others.
  // `scratch` is the loop's buffer. Error(kPeerLost) when the peer closed, kInvalid when it failed
  // the handshake.
  void read(std::span<std::byte> scratch);
  // The next complete request. Error(kCorrupt) when the peer broke the protocol.
  std::optional<StoreRequest> next_request();

  // Sends, keeping what the socket does not take now.
  void send(std::vector<std::byte> bytes);
  void flush();
  bool has_output() const { return !output_.empty(); }

  bool authenticated() const { return handshake_ == nullptr; }
  int fd() const { return socket_.get(); }
  const std::string& peer() const { return peer_; }

  bool parked = false;    // waits for its reply; nothing is read from it meanwhile
  unsigned interest = 0;  // what epoll was told

 private:
  std::size_t receive(std::span<std::byte> bytes);

  Fd socket_;
  std::string peer_;
  std::unique_ptr<ServerHandshake> handshake_;  // until it is done
  std::vector<std::byte> input_;
  std::size_t consumed_ = 0;
  SendQueue output_;
};

// Lets the kernel notice within half a minute that the machine at the other end died without a
// word.
void enable_keepalive(const Fd& socket);

}  // namespace paceline
