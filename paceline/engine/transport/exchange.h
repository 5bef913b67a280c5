#pragma once

// Moves messages to and from all peers of a mesh at the same time over their data channels, without
// threads: the caller posts sends and receives, then runs the poll loop until what it needs has
// arrived. Per peer, messages keep their order.
//
// Where several connections join a pair of ranks (Stripes), headers and short payloads go over
// the first, and each of the others through its shares of the long ones at its own pace.
//
// Headers are read as they arrive, also from peers from which nothing is expected: a rank that
// makes another call is noticed by the ranks that it sends to.
//
// Every wait ends at the deadline or when the mesh fails. Thread safety: none; one executor owns
// it.

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

// How a payload is divided among the connections that carry a pair's data ("streams"): in blocks,
// which take turns over the streams, so that its beginning is there early and can be reduced while
// the rest comes. What is too short for that goes over the first stream, in one piece. Both ends
// know it from the length alone. A value.
class Stripes {
 public:
  // Long enough to make system calls cheap; also an encrypted record.
  static constexpr std::size_t kBlockBytes = 64 << 10;
  // The least payload that is divided.
  static constexpr std::size_t kLeastBytes = 2 * kBlockBytes;

  // Requires: streams > 0.
  Stripes(std::size_t bytes, std::size_t streams)
      : bytes_(bytes), streams_(bytes < kLeastBytes ? 1 : streams) {}

  // How many bytes go over the stream.
  std::size_t share(std::size_t stream) const {
    if (streams_ == 1) return stream == 0 ? bytes_ : 0;
    const std::size_t blocks = bytes_ / kBlockBytes, turns = blocks / streams_;
    const std::size_t last = blocks % streams_;  // the stream of the block that is none
    return (turns + (stream < last ? 1 : 0)) * kBlockBytes +
           (stream == last ? bytes_ % kBlockBytes : 0);
  }

  struct Run {
    std::size_t offset = 0, count = 0;
  };
  // Where the bytes behind the first `done` of a stream's share lie; none behind its end.
  Run next(std::size_t stream, std::size_t done) const {
    if (done >= share(stream)) return {bytes_, 0};
    if (streams_ == 1) return {done, bytes_ - done};
    const std::size_t block = done / kBlockBytes * streams_ + stream, in_it = done % kBlockBytes;
    const std::size_t end = std::min(bytes_, (block + 1) * kBlockBytes);
    return {block * kBlockBytes + in_it, end - block * kBlockBytes - in_it};
  }

 private:
  std::size_t bytes_, streams_;
};

class Exchange {
 public:
  // Called once for each header that has arrived, before its payload is read, and with `expected`
  // false as long as no receive was posted for it; throws to refuse it.
  using CheckHeader = std::function<void(int peer, const MessageHeader& header, bool expected)>;
  // Bytes of a payload that have moved; kAll when nothing of the message is left.
  static constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();

  explicit Exchange(Mesh& mesh);

  // Both give the number of the message among those to, or from, this peer. Requires: the memory
  // stays valid until sent_bytes(), or received_bytes(), is kAll. The size of `into` is what the
  // header must announce.
  std::uint64_t post_send(int peer, const MessageHeader& header,
                          std::span<const std::byte> payload);
  std::uint64_t post_receive(int peer, std::span<std::byte> into);
  // Sends only a header that says "I am in this operation" (kPresenceTag). It has no number, no
  // rank waits for it, and a peer that has left may miss it; the peer's check sees it.
  void post_presence(int peer, MessageHeader header);

  std::size_t sent_bytes(int peer, std::uint64_t number) const;
  std::size_t received_bytes(int peer, std::uint64_t number) const;
  // True when all receives posted so far from `peer` have completed.
  bool received_all(int peer) const;
  // The peers from which something is still expected, or that have not taken all that was sent.
  std::vector<int> waiting_for() const;

  // Moves what can move without waiting; whether anything did.
  bool pump(const CheckHeader& check);
  // Runs until `done` says so. `on_slow` is called about every 10 ms while nothing moves; it may
  // throw.
  void run_until(const std::function<bool()>& done, const CheckHeader& check, Deadline deadline,
                 const std::function<void()>& on_slow);
  // No send or receive is under way.
  bool idle() const;
  // Forgets everything that was posted; after an error.
  void clear();

 private:
  struct Outgoing {
    MessageHeader header;
    std::span<const std::byte> payload;
  };
  // How far a stream is.
  struct Stream {
    std::uint64_t message = 0;  // of the lane's sends, counted from the first ever
    std::size_t sent = 0;       // of its share of it, on the first stream with the header
    std::size_t got = 0;        // of its share of the message that is arriving
  };
  struct Lane {
    std::vector<Stream> streams;
    std::deque<Outgoing> sends;
    std::uint64_t num_gone = 0;    // that were in front of these
    std::uint64_t num_posted = 0;  // presences apart
    std::uint64_t num_sent = 0;    // of these
    std::deque<std::span<std::byte>> receives;
    std::uint64_t num_received = 0;
    MessageHeader header;        // of the message that is arriving
    std::size_t header_got = 0;  // bytes
    bool was_shown = false;      // to the check, as unexpected
    bool is_accepted = false;    // by the check, as expected
    bool is_quiet = false;       // no unexpected header can be there until a receive is posted
  };

  void reset_lanes();
  bool pump_sends(int peer);
  bool pump_stream(int peer, Lane& lane, std::size_t stream);
  // The message of which the stream has something to send; the stream moves on to it.
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
  void wait_for_peers(std::chrono::milliseconds limit);

  Mesh& mesh_;
  std::vector<Lane> lanes_;
};

}  // namespace paceline
