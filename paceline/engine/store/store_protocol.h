#pragma once

// The frames between TcpStore and TcpStoreServer, after the handshake of
// engine/core/authentication.h with context "store", and the server's end of one connection.
// store/FORMAT.md describes the bytes. All commands have one form: a frame is a u32 length
// and that many bytes; a client sends one request and reads one reply. A length is checked before
// memory is allocated for it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/store/store.h"
#include "paceline/engine/store/store_request.h"

namespace paceline {

inline constexpr char kStoreContext[] = "store";
inline constexpr std::size_t kFrameHeaderBytes = 4;
// The longest body of a frame in either direction; a value of the maximum size fits easily.
inline constexpr std::size_t kMaxFrameBytes = 16 << 20;

StoreReply error_reply(const Error& error);

// The whole frame, including the length. Throws Error(kInvalid) when the body would exceed
// kMaxFrameBytes.
std::vector<std::byte> encode(const StoreRequest& request);
std::vector<std::byte> encode(const StoreReply& reply);

// Decodes the body of a frame, without the length. Throws Error(kCorrupt) unless the bytes are
// exactly one message; a request must also have as many keys and values as its command takes.
StoreRequest decode_request(std::span<const std::byte> body);
StoreReply decode_reply(std::span<const std::byte> body);

// The length in a frame's header. Throws Error(kCorrupt) when it is 0 or above kMaxFrameBytes.
std::size_t frame_length(std::span<const std::byte> header);

// The TCP server's end of the connection to one client. It turns received bytes into requests and
// replies into bytes to send, and never waits. Until the handshake is done it reads at most 72
// bytes from the peer; after that, it buffers up to a frame and the bytes of one call of read().
//
// Thread safety: none; the server's loop owns it.
class StoreConnection {
 public:
  StoreConnection(Fd socket, const Secret& secret);

  // Reads the bytes that the socket has, up to a bound that keeps one client from starving the
  // others. `scratch` is the loop's buffer. Throws Error(kPeerLost) when the peer closed the
  // connection, and kInvalid when it failed the handshake.
  void read(std::span<std::byte> scratch);
  // The next complete request, if there is one. Throws Error(kCorrupt) when the peer broke the
  // protocol.
  std::optional<StoreRequest> next_request();

  // Sends as many bytes as the socket takes now; flush() sends the rest.
  void send(std::vector<std::byte> bytes);
  void flush();
  bool has_output() const { return !output_.empty(); }

  bool authenticated() const { return handshake_ == nullptr; }
  int fd() const { return socket_.get(); }
  const std::string& peer() const { return peer_; }

  bool parked = false;    // the client's request waits for keys; nothing is read until the reply
  unsigned interest = 0;  // the events that epoll reports for this connection

 private:
  std::size_t taken(ssize_t got) const;

  Fd socket_;
  std::string peer_;
  std::unique_ptr<ServerHandshake> handshake_;  // null once the handshake is done
  std::vector<std::byte> input_;
  std::size_t consumed_ = 0;
  SendQueue output_;
};

// Makes the kernel notice within half a minute that the machine at the other end died without
// closing the connection.
void enable_keepalive(const Fd& socket);

}  // namespace paceline
