#pragma once

// The interface through which a rank's bytes reach its peers, and the header of a message. Every
// peer has three channels or more; each is a stream of bytes in both directions and keeps their
// order. Only the wait functions wait. Implemented by SocketWire, LoopbackWire and UcxWire. The
// names of the transports, for options and messages, are at the end.
//
// Thread safety: at most one thread at a time may use a channel; the functions on names are pure.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <sys/types.h>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/transport/link_options.h"

namespace paceline {

enum class Channel : std::uint8_t { kControl = 0, kData = 1, kPointToPoint = 2, kMoreData = 3 };
inline constexpr int kNumChannels = 3;  // channels that every pair of ranks has

// Large messages may be divided among several connections (exchange.h). The first one is the data
// channel; the others are the channels from kMoreData on.
inline constexpr int kMaxStreams = 16;
inline constexpr int kMaxChannels = kNumChannels + kMaxStreams - 1;
constexpr Channel data_channel(std::size_t stream) {
  return stream == 0
             ? Channel::kData
             : static_cast<Channel>(static_cast<std::size_t>(Channel::kMoreData) + stream - 1);
}

// A channel that a caller waits for, with the events that it waits for: POLLIN, POLLOUT, as for
// poll().
struct Interest {
  int peer = 0;
  Channel channel{};
  short events = 0;
  bool is_ready = false;  // set by wait() if an event, the channel's end or an error has occurred
};

class Wire {
 public:
  virtual ~Wire() = default;
  // "tcp", "loopback", "ucx".
  virtual const char* name() const = 0;
  // Whether the peer's control channel is connected. For use while a group forms.
  virtual bool is_connected(int peer) const = 0;
  // How many connections carry the data to and from the peer.
  virtual int num_streams(int /*peer*/) const { return 1; }

  // Sends `head` and then `rest` as sendmsg() would, without waiting. After EAGAIN the caller must
  // pass the same bytes, at the same addresses, again.
  virtual ssize_t send(int peer, Channel channel, std::span<const std::byte> head,
                       std::span<const std::byte> rest) = 0;
  // Like recv(), without waiting; returns 0 if the peer has ended, and -1 with EBADMSG if the bytes
  // differ from the bytes that the peer sent.
  virtual ssize_t receive(int peer, Channel channel, std::span<std::byte> into) = 0;
  // Like receive(), but leaves the bytes in place.
  virtual ssize_t peek(int peer, Channel channel, std::span<std::byte> into) = 0;

  // Waits until one of `interests` is ready, for at most `limit`; may return earlier.
  virtual void wait(std::span<Interest> interests, std::chrono::milliseconds limit) = 0;
  // Like wait(), but wake() ends the wait of the one thread that calls this function: its current
  // wait or, if the thread is not waiting, its next one. Without `limit` the wait is unlimited.
  virtual void wait_or_wake(std::span<Interest> interests,
                            std::optional<std::chrono::milliseconds> limit) = 0;
  virtual void wake() = 0;
  // False if no control channel can have received anything since the last call.
  virtual bool may_have_news() { return true; }
  // Call this after a failure, which is final: afterwards, no memory passed to send() is read.
  virtual void cancel(Channel /*channel*/) {}

  // The socket of a channel, for passing descriptors; -1 if the channel is not a socket.
  virtual int socket(int peer, Channel channel) const = 0;
};

// Sends `bytes`, waiting for room. Returns how many were sent, with errno set if not all of them;
// ETIMEDOUT at the deadline.
std::size_t send_until(Wire& wire, int peer, Channel channel, std::span<const std::byte> bytes,
                       Deadline deadline);
// Like send_until(), but returns whether all bytes were sent. After false, nothing else may be sent
// on this channel.
bool send_whole(Wire& wire, int peer, Channel channel, std::span<const std::byte> bytes,
                Deadline deadline);

// The facts that both ends of a message must agree on, as opaque words that the layers above fill
// and compare.
using FingerprintWords = std::array<std::uint64_t, 4>;

// A message on a data or point-to-point channel is this header, then `payload_bytes` bytes.
// transport/FORMAT.md has the layout.
struct MessageHeader {
  static constexpr std::uint32_t kMagic = 0x4d4c5002;  // "\x02PLM": version 2
  // The payload is not in the stream: the 8 bytes after the header are its address
  // (message_streams.h).
  static constexpr std::uint32_t kOfferMagic = 0x444c5002;  // "\x02PLD"
  // On a data channel: "I am in this operation". A rank that has waited for a while sends it to all
  // peers.
  static constexpr std::uint32_t kPresenceTag = 1;

  std::uint32_t magic = kMagic;
  // The tag of a point-to-point message; 0 or kPresenceTag on a data channel.
  std::uint32_t tag = 0;
  std::uint64_t payload_bytes = 0;
  FingerprintWords fingerprint{};

  bool is_offer() const { return magic == kOfferMagic; }
};
static_assert(sizeof(MessageHeader) == 48);

// Whether an errno means that the channel has no room, or no bytes, at the moment.
bool would_block(int error);

// "auto", "tcp", "shm", "loopback", "ucx"; any other name gives Error(kInvalid), which names it.
TransportKind parse_transport(const std::string& name);
std::string_view name_of(TransportKind transport);

}  // namespace paceline
