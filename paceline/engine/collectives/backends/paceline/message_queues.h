#pragma once

// The queues of a group's messages (to be sent, awaited by a receive, or arrived before a receive),
// and the head that travels ahead of each message's payload.

#include <array>
#include <bit>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "paceline/engine/collectives/backend.h"
#include "paceline/engine/collectives/device_order.h"
#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/core/dtype_traits.h"
#include "paceline/engine/transport/mesh.h"
#include "paceline/engine/transport/message_streams.h"
#include "paceline/engine/transport/wire.h"

namespace paceline {

class Mesh;

// The facts that both ends of a message must agree on.
Fingerprint fingerprint_of(const PointToPointCall& call);
// The number of bytes that the engine moves.
inline std::size_t bytes_of(const PointToPointCall& call) {
  return call.device == Device::kCpu ? call.count * size_of(call.dtype) : call.announcement_bytes;
}

// The head of a message, which travels ahead of its payload: the header, and the shape of a tensor
// if the receiver may not know it (transport/FORMAT.md, section 4).
struct MessageHead {
  MessageHeader header;
  std::array<std::int64_t, kMaxMessageSizes> sizes{};  // only the first num_sizes() travel

  static MessageHead of(const PointToPointCall& call);

  // This and the following functions require a complete header. Returns the number of sizes; empty
  // if the message has no shape. The fingerprint's `layout`, which messages do not use otherwise,
  // holds that number plus 1.
  std::optional<std::size_t> num_sizes() const {
    const std::uint32_t layout = std::bit_cast<Fingerprint>(header.fingerprint).layout;
    return layout == 0 ? std::optional<std::size_t>() : layout - 1;
  }
  std::span<const std::int64_t> shape() const { return {sizes.data(), num_sizes().value_or(0)}; }
  std::size_t num_bytes() const {
    return sizeof(MessageHeader) + num_sizes().value_or(0) * sizeof(std::int64_t);
  }
  // The number of bytes before the payload. An offered payload (DirectRead) is not sent; its
  // address, which is counted here, takes its place in the stream.
  std::size_t num_bytes_before_payload() const {
    return num_bytes() + (header.is_offer() ? sizeof(std::uint64_t) : 0);
  }
  std::span<const std::byte> bytes() const {
    return std::as_bytes(std::span(this, 1)).first(num_bytes());
  }
  // Whether the payload has as many bytes as a tensor of this shape.
  bool fits_payload() const;
};

// The description of a call in error texts, without the objects that the call keeps alive.
struct MessageLabel {
  const char* what;
  Dtype dtype;
  std::size_t count;
  Device device;
  bool any_shape;
  int peer, peer_in_world;
  std::uint32_t tag;

  std::string operator()() const;
};

// `mesh` is the group's mesh, which knows the peer's rank in the world.
MessageLabel label_of(const char* what, const PointToPointCall& call, const Mesh& mesh);

// The messages of a group that are to be sent, are awaited, or have arrived. They are matched by
// sender and tag, in the order of sending, and moved as far as the streams have room.
// point_to_point.h decides which thread moves them, and when.
//
// Invariants, which together make messages of one sender and tag arrive in the order of sending:
//
// (1) A message passes through sends_ of its sender, the stream between the two ranks, incoming_
//     (one entry for each peer), and ends in a receive's buffer or in unexpected_.
// (2) A stream is read in order; the head of a message is read only after the previous message is
//     complete. So unexpected_[p] is in the order of sending, and all of it was sent before
//     incoming_[p].
// (3) A receive takes the first message of unexpected_ that matches it. A receive that finds none
//     is added to receives_. So no receive in receives_ matches a message in unexpected_.
// (4) When a message's head is read, the message takes the first matching receive in receives_. If
//     there is none, the payload is buffered, and receives_ is searched again when the payload is
//     complete. receives_ is in the order of posting.
// (5) unexpected_bytes_ is at most kMaxUnexpectedBytes. A message for which there is no room stays
//     in the stream until there is room or a receive matches it, and so does everything that its
//     sender sends after it.
// (6) An offered payload (DirectRead) stays in the sender's memory until the receiver has taken or
//     refused it, or the sender withdraws it; a refused one follows its head through the stream.
//
// The queues need no memory order of their own: PointToPoint calls them with its mutex held.
// transport/message_streams.h explains the memory order of the rings in shared memory.
//
// Thread safety: none.
class MessageQueues {
 public:
  static constexpr std::size_t kMaxUnexpectedBytes = 64 << 20;

  // Requires: `mesh` and `streams` outlive this object.
  MessageQueues(Mesh& mesh, MessageStreams& streams);

  // Sends a whole message now if it is small, the peer's ring has room, and no other message is
  // ahead of it; otherwise does nothing and returns false.
  bool send_at_once(const PointToPointCall& call);
  // Receives the next message of the call's peer if it is small. kNotYet: it has not arrived. kNo:
  // this shortcut does not apply (for example, an operation is pending, or the next message is
  // large or has another tag); call receive() instead.
  enum class AtOnce { kTaken, kNotYet, kNo };
  AtOnce receive_at_once(const PointToPointCall& call);
  // send() and receive() begin an operation, which pump() then advances. A receive whose message
  // has already arrived completes at once; Error(kInvalid) if that message has another type or
  // size than the receive. `progress` is passed to the Work.
  WorkPtr send(const PointToPointCall& call, Deadline deadline, std::weak_ptr<Progress> progress);
  WorkPtr receive(const PointToPointCall& call, Deadline deadline,
                  std::weak_ptr<Progress> progress);
  // Whether an operation is under way.
  bool is_pending() const;
  // Advances one message in each direction for every peer, without waiting; true if any advanced.
  // A large offered message without a receive would have to be copied into a buffer first: unless
  // `takes_unexpected` is set, it is left with its sender for a moment, in case its receive is
  // posted soon. Throws if a peer is lost, or has sent a message that does not fit its receive.
  bool pump(bool takes_unexpected);
  // The channels that must become ready before pump() can advance further.
  std::vector<Interest> interests() const;
  // check_deadlines() throws Error(kTimeout) for an expired operation; require_senders() throws an
  // error if no rank is left that could send the message of a receive.
  void check_deadlines() const;
  ErrorContext context_of(std::string_view operation, int peer, Deadline deadline) const;
  void require_senders() const;
  // Ends all operations under way with `error`.
  void fail_all(const Error& error);
  // Warns about the first message of each peer that was sent to this rank but never received.
  void warn_of_unreceived() const;
  // The Works and objects of operations that have ended. The caller takes them and calls settle()
  // without a lock, because settle() runs code of the program.
  struct Ended {
    std::vector<WorkPtr> works;                     // Works with functions to call
    std::vector<std::shared_ptr<void>> kept_alive;  // objects to drop

    // Calls the functions and drops the objects. Both may own the MessageQueues.
    void settle();
  };
  bool has_ended() const { return !ended_.works.empty() || !ended_.kept_alive.empty(); }
  Ended take_ended() { return std::exchange(ended_, {}); }

 private:
  struct Outgoing {
    PointToPointCall call;
    MessageHead head;
    Deadline deadline;
    WorkPtr work;
    std::size_t sent = 0;  // bytes sent through the stream
    // The address of an offered payload; it follows the head in place of the payload.
    std::uint64_t address = 0;
    AwakeClock::time_point begin = AwakeClock::now();
  };
  struct Posted {
    PointToPointCall call;
    Deadline deadline;
    WorkPtr work;
    AwakeClock::time_point begin = AwakeClock::now();
  };
  struct Unexpected {
    MessageHead head;
    std::vector<std::byte> payload;
  };
  // The message that is being read from one peer.
  struct Incoming {
    MessageHead head;
    std::uint64_t address = 0;          // address of an offered payload
    std::optional<Deadline> take_by;    // an offered payload waits for its receive until then
    std::size_t got = 0;                // bytes of head, address and payload together
    std::optional<Posted> receive;      // set if a receive gets the payload
    std::vector<std::byte> unexpected;  // the payload, unless a receive gets it
    bool accepted = false;              // the head has been read and the payload has a destination
    bool ended = false;                 // the peer will send nothing more
  };

  bool pump_send(int peer);
  bool pump_receive(int peer, bool takes_unexpected);
  bool read_head(int peer, Incoming& incoming);
  bool read_payload(int peer, Incoming& incoming);
  bool read_offered(int peer, Incoming& incoming, std::span<std::byte> rest);
  void require_header(int peer, const MessageHead& head) const;
  void require_shape(int peer, const MessageHead& head) const;
  bool accept_head(int peer, Incoming& incoming, bool takes_unexpected);
  void finish_message(int peer, Incoming& incoming);
  void deliver_unexpected(Posted& posted);
  void deliver(Posted& posted, int peer, const Unexpected& message);
  void end(PointToPointCall& call, Work& work, const std::exception_ptr& error,
           int source_rank = -1);
  std::optional<MessageHeader> next_unreceived(int peer) const;
  void match(int peer, const MessageHead& head, PointToPointCall& call) const;
  void require_matching(int peer, const MessageHead& head, const PointToPointCall& call) const;

  Mesh& mesh_;
  MessageStreams& streams_;
  std::vector<std::deque<Outgoing>> sends_;
  std::vector<Posted> receives_;  // receives in the order of posting
  std::vector<Incoming> incoming_;
  std::vector<std::deque<Unexpected>> unexpected_;
  std::size_t unexpected_bytes_ = 0;
  Ended ended_;
};

}  // namespace paceline
