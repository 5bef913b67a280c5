#pragma once

// The interface by which a rank's bytes get to its peers, and the header of a message: per peer
// three channels or more, each a stream of bytes in both directions that keeps its order. Nothing
// waits but wait(). Implemented by SocketWire, LoopbackWire and UcxWire.
//
// Thread safety: one thread a channel may send and receive at a time.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include <sys/types.h>

#include "paceline/engine/core/deadline.h"

namespace paceline {

enum class Channel : std::uint8_t { kControl = 0, kData = 1, kPointToPoint = 2, kMoreData = 3 };
inline constexpr int kNumChannels = 3;  // that every pair has

// Large messages may be divided among several connections (exchange.h): the first is the data
// channel, the others have the numbers from kMoreData on.
inline constexpr int kMaxStreams = 16;
inline constexpr int kMaxChannels = kNumChannels + kMaxStreams - 1;
constexpr Channel data_channel(std::size_t stream) {
  return stream == 0
             ? Channel::kData
             : static_cast<Channel>(static_cast<std::size_t>(Channel::kMoreData) + stream - 1);
}

// A channel that a caller waits for, and for what: POLLIN, POLLOUT, as poll() takes them.
struct Interest {
  int peer = 0;
  Channel channel{};
  short events = 0;
  bool is_ready = false;  // set by wait(): events, the channel's end, or an error
};

class Wire {
 public:
  virtual ~Wire() = default;
  // "tcp", "loopback", "ucx".
  virtual const char* name() const = 0;
  // While a group forms: whether the peer's control channel stands.
  virtual bool is_connected(int peer) const = 0;
  // How many connections carry the data to and from the peer.
  virtual int num_streams(int /*peer*/) const { return 1; }

  // As sendmsg() without waiting, of the beginning of `head` and then `rest`. A caller that got
  // EAGAIN passes the same bytes, at the same addresses, again.
  virtual ssize_t send(int peer, Channel channel, std::span<const std::byte> head,
                       std::span<const std::byte> rest) = 0;
  // As recv() without waiting; 0 where the peer has ended. -1 and EBADMSG for bytes that it did not
  // send so.
  virtual ssize_t receive(int peer, Channel channel, std::span<std::byte> into) = 0;
  // The same, and the bytes stay.
  virtual ssize_t peek(int peer, Channel channel, std::span<std::byte> into) = 0;

  // Until something of it is ready, at most for `limit`; it may return earlier.
  virtual void wait(std::span<Interest> interests, std::chrono::milliseconds limit) = 0;
  // The same for the one thread that wake() wakes, now or at its next wait; without a limit when
  // none is given.
  virtual void wait_or_wake(std::span<Interest> interests,
                            std::optional<std::chrono::milliseconds> limit) = 0;
  virtual void wake() = 0;
  // False when no control channel can have anything new since the last call.
  virtual bool may_have_news() { return true; }
  // After a failure, which is final: nothing that was passed to send() is read any more.
  virtual void cancel(Channel /*channel*/) {}

  // For passing descriptors along; -1 where the channel is not a socket.
  virtual int socket(int peer, Channel channel) const = 0;
};

// Sends `bytes`, waiting for room: how many are through, and errno when that is not all of them;
// ETIMEDOUT at the deadline.
std::size_t send_until(Wire& wire, int peer, Channel channel, std::span<const std::byte> bytes,
                       Deadline deadline);
// Whether all of them are through. Requires: after a false, nothing else is sent on this channel.
bool send_whole(Wire& wire, int peer, Channel channel, std::span<const std::byte> bytes,
                Deadline deadline);

// The facts that both ends must agree on, as opaque words: the layers above fill and compare them.
using FingerprintWords = std::array<std::uint64_t, 4>;

// A message on a data or point-to-point channel is this header, then `payload_bytes` bytes.
// docs/wire_formats.md has the layout.
struct MessageHeader {
  static constexpr std::uint32_t kMagic = 0x4d4c5002;  // "\x02PLM": version 2
  // The payload lies where the 8 bytes behind the header say (message_streams.h).
  static constexpr std::uint32_t kOfferMagic = 0x444c5002;  // "\x02PLD"
  // On a data channel: "I am in this operation", said to all by a rank that has waited for a while.
  static constexpr std::uint32_t kPresenceTag = 1;

  std::uint32_t magic = kMagic;
  std::uint32_t tag = 0;  // of point-to-point; on a data channel 0 or kPresenceTag
  std::uint64_t payload_bytes = 0;
  FingerprintWords fingerprint{};

  bool is_offer() const { return magic == kOfferMagic; }
};
static_assert(sizeof(MessageHeader) == 48);

// Whether an errno means that the channel can take or give nothing now.
bool would_block(int error);

}  // namespace paceline
