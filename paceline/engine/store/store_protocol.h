#pragma once

// The frames between TcpStore and TcpStoreServer, after the handshake of
// engine/core/authentication.h with context "store", and the server's end of one connection.
// docs/formats/store.md lays out the bytes. One shape serves every command: a frame is a u32 length
// and that many bytes; a client sends one request and reads one reply. Nothing is allocated before
// its length was checked.

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

namespace paceline {

inline constexpr char kStoreContext[] = "store";
inline constexpr std::size_t kFrameHeaderBytes = 4;
// The most bytes of a frame's body, in both directions: a value of the greatest size fits easily.
inline constexpr std::size_t kMaxFrameBytes = 16 << 20;

StoreReply error_reply(const Error& error);

// A frame, with the length in front. Error(kInvalid) when the body would be over kMaxFrameBytes.
std::vector<std::byte> encode(const StoreRequest& request);
std::vector<std::byte> encode(const StoreReply& reply);

// The body of a frame, without the length. Error(kCorrupt) when the bytes are not exactly one
// message with the fields that its command takes.
StoreRequest decode_request(std::span<const std::byte> body);
StoreReply decode_reply(std::span<const std::byte> body);

// The length in a frame's header. Error(kCorrupt) when it is 0 or above kMaxFrameBytes.
std::size_t frame_length(std::span<const std::byte> header);

// One client's end in the TCP server: bytes in, requests out, replies in, bytes out, never waiting.
// Until the handshake is done it keeps at most 72 bytes of the peer's; after that, at most one
// frame and what one read brings.
//
// Thread safety: none; the server's loop owns it.
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
  std::size_t taken(ssize_t got) const;

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
