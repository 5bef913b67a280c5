#pragma once

// Moves messages to and from all peers of a mesh at the same time over their data channels, without
// threads: the caller posts sends and receives, then runs the poll loop until the messages that it
// needs have arrived. Per peer, messages keep their order.
//
// If several connections join a pair of ranks (Stripes), headers and short payloads use the first
// one. Long payloads are divided among all connections, and each sends its share at its own pace.
//
// Headers are read as they arrive, even from peers from which nothing is expected. So if a rank
// makes a different call, the ranks to which it sends notice the difference.
//
// Every wait ends at the deadline or when the mesh fails. Thread safety: none; an
// Exchange belongs to one executor.

#include <algorithm>
#include <cstddef>
#include <deque>
#include <functional>
#include <limits>
#include <vector>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/transport/mesh.h"
#include "paceline/engine/transport/wire.h"

namespace paceline {

// How a payload is divided among the connections that carry a pair's data ("streams"): its blocks
// go over the streams in turn, so that the beginning of the payload arrives early and can be
// reduced while the rest is on its way. A payload of less than kMinBytes goes over the first
// stream alone. Both ends derive the division from the length and the number of streams. A value.
class Stripes {
 public:
  // The length of a block, which keeps system calls cheap; also the length of an encrypted record.
  static constexpr std::size_t kBlockBytes = 64 << 10;
  // The shortest payload that is divided.
  static constexpr std::size_t kMinBytes = 2 * kBlockBytes;

  // Requires: streams > 0.
  Stripes(std::size_t bytes, std::size_t streams)
      : bytes_(bytes), streams_(bytes < kMinBytes ? 1 : streams) {}

  // The number of bytes of the payload that go over the stream.
  std::size_t share(std::size_t stream) const {
    if (streams_ == 1) return stream == 0 ? bytes_ : 0;
    const std::size_t blocks = bytes_ / kBlockBytes, turns = blocks / streams_;
    // The stream that carries the last bytes, which are fewer than a block.
    const std::size_t last = blocks % streams_;
    return (turns + (stream < last ? 1 : 0)) * kBlockBytes +
           (stream == last ? bytes_ % kBlockBytes : 0);
  }

  struct Run {
    std::size_t offset = 0, count = 0;
  };
  // The consecutive bytes that follow the first `done` bytes of the stream's share, up to the end
  // of their block; an empty run at the end of the share.
  Run next(std::size_t stream, std::size_t done) const {
    if (done >= share(stream)) return {bytes_, 0};
    if (streams_ == 1) return {done, bytes_ - done};
    const std::size_t block = done / kBlockBytes * streams_ + stream,
                      offset_in_block = done % kBlockBytes;
    const std::size_t end = std::min(bytes_, (block + 1) * kBlockBytes);
    return {block * kBlockBytes + offset_in_block, end - block * kBlockBytes - offset_in_block};
  }

 private:
  std::size_t bytes_, streams_;
};

class Exchange {
 public:
  // Called for each header that has arrived, before its payload is read. `expected` is false while
  // no receive has been posted for the message. The check throws to refuse the message.
  using CheckHeader = std::function<void(int peer, const MessageHeader& header, bool expected)>;
  // sent_bytes() and received_bytes() return this once the whole message was sent or received.
  static constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();

  explicit Exchange(Mesh& mesh);

  // post_send() and post_receive() return the number of the message among all messages to, or from,
  // this peer. Requires: the memory stays valid until sent_bytes(), or received_bytes(), returns
  // kAll. A header that announces another size than that of `into` gives Error(kInvalid).
  std::uint64_t post_send(int peer, const MessageHeader& header,
                          std::span<const std::byte> payload);
  std::uint64_t post_receive(int peer, std::span<std::byte> into);
  // Sends only a header, for the peer's check: "I am in this operation" (kPresenceTag). The message
  // has no number, no rank waits for it, and a peer that has left may miss it.
  void post_presence(int peer, MessageHeader header);

  std::size_t sent_bytes(int peer, std::uint64_t number) const;
  std::size_t received_bytes(int peer, std::uint64_t number) const;
  // True when all receives posted so far from `peer` have completed.
  bool received_all(int peer) const;
  // The peers from which bytes are still expected, or to which bytes are still to be sent.
  std::vector<int> waiting_for() const;

  // Moves all bytes that can move without waiting; returns whether any did.
  bool pump(const CheckHeader& check);
  // Runs until `done` returns true or the deadline passes. `on_slow` is called about every 10 ms
  // while nothing moves; it may throw.
  void run_until(const std::function<bool()>& done, const CheckHeader& check, Deadline deadline,
                 const std::function<void()>& on_slow);
  // True if no send or receive is under way; presence messages do not count.
  bool idle() const;
  // Forgets everything that was posted. For use after an error.
  void clear();

 private:
  struct Outgoing {
    MessageHeader header;
    std::span<const std::byte> payload;
  };
  // The progress of one stream.
  struct Stream {
    std::uint64_t message = 0;  // index of the message being sent; presence messages count
    // bytes sent of the stream's share; for the first stream, the header's bytes count too
    std::size_t sent = 0;
    std::size_t got = 0;  // bytes received of the stream's share of the arriving message
  };
  struct Lane {
    std::vector<Stream> streams;
    std::deque<Outgoing> sends;
    std::uint64_t num_gone = 0;    // messages sent completely and dropped from the front
    std::uint64_t num_posted = 0;  // messages posted, except presence messages
    std::uint64_t num_sent = 0;    // messages whose last byte was sent
    std::deque<std::span<std::byte>> receives;
    std::uint64_t num_received = 0;
    MessageHeader header;        // the header of the arriving message
    std::size_t header_got = 0;  // bytes of that header
    bool was_shown = false;      // the header was shown to the check, as unexpected
    bool is_accepted = false;    // the check has accepted the header, as expected
    bool is_quiet = false;       // no unexpected header follows; reset by run_until()
  };

  void reset_lanes();
  bool pump_sends(int peer);
  bool pump_stream(int peer, Lane& lane, std::size_t stream);
  // Advances the stream to the next message of which it still has bytes to send, and returns that
  // message; null if there is none.
  const Outgoing* message_of(Lane& lane, std::size_t stream) const;
  void drop_sent(Lane& lane);
  bool pump_receives(int peer, const CheckHeader& check);
  bool read_header(int peer, Lane& lane, const CheckHeader& check);
  void accept(int peer, Lane& lane, const CheckHeader& check);
  bool read_payload(int peer, Lane& lane, bool& moved);
  bool read_share(int peer, Lane& lane, std::size_t stream, bool& moved);
  bool begins_a_message(int peer, Lane& lane) const;
  std::size_t read(int peer, Channel channel, std::span<std::byte> into) const;
  short events_of(Lane& lane, std::size_t stream) const;
  void wait_for_peers(std::chrono::milliseconds limit, std::span<const int> left);

  Mesh& mesh_;
  std::vector<Lane> lanes_;
};

}  // namespace paceline
