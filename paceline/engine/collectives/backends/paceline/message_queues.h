#pragma once

// The messages of a group that are sent, asked for or kept, and the head that travels ahead of
// each.

#include <array>
#include <bit>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "paceline/engine/collectives/backend.h"
#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/transport/mesh.h"
#include "paceline/engine/transport/message_streams.h"
#include "paceline/engine/transport/wire.h"

namespace paceline {

class Mesh;

// What both ends of a message must agree on.
Fingerprint fingerprint_of(const PointToPointCall& call);
inline std::size_t bytes_of(const PointToPointCall& call) {
  return call.count * size_of(call.dtype);
}

// What travels ahead of a payload: the header, and the shape of a tensor where the receiver may not
// know it (docs/wire_formats.md, section 4). A value.
struct MessageHead {
  MessageHeader header;
  std::array<std::int64_t, kMaxMessageSizes> sizes{};  // num_sizes() of them travel

  static MessageHead of(const PointToPointCall& call);

  // All of them require the header.
  // Nothing: it has no shape. A fingerprint's layout, which messages do not need otherwise, has 1
  // more than there are sizes.
  std::optional<std::size_t> num_sizes() const {
    const std::uint32_t layout = std::bit_cast<Fingerprint>(header.fingerprint).layout;
    return layout == 0 ? std::optional<std::size_t>() : layout - 1;
  }
  std::span<const std::int64_t> shape() const { return {sizes.data(), num_sizes().value_or(0)}; }
  std::size_t num_bytes() const {
    return sizeof(MessageHeader) + num_sizes().value_or(0) * sizeof(std::int64_t);
  }
  // With the address that an offered payload has instead.
  std::size_t num_bytes_before_payload() const {
    return num_bytes() + (header.is_offer() ? sizeof(std::uint64_t) : 0);
  }
  std::span<const std::byte> bytes() const {
    return std::as_bytes(std::span(this, 1)).first(num_bytes());
  }
  // The payload has as many bytes as a tensor of this shape.
  bool fits_payload() const;
};

// A call for messages, without what it keeps alive.
struct MessageLabel {
  const char* what;
  Dtype dtype;
  std::size_t count;
  bool any_shape;
  int peer, peer_in_world;
  std::uint32_t tag;

  std::string operator()() const;
};

// `mesh`: that of the group, which knows the peer's number in the world.
MessageLabel label_of(const char* what, const PointToPointCall& call, const Mesh& mesh);

// The messages of a group that are to be sent, are asked for, or have arrived: matched by sender
// and tag, in the order of sending, and moved as far as the streams take them. point_to_point.h
// decides which thread moves them, and when.
//
// Invariants, which together make messages of one sender and tag arrive in the order of sending:
//
// (1) A message is in one place: sends_ of its sender, the stream between the two ranks, incoming_
//     (one for each peer, while it is read), then a receive's buffer or unexpected_.
// (2) A stream is read in order, and the head of the next message only when the one before is
//     complete. So unexpected_[p] is in the order of sending, and all of it was sent before
//     incoming_[p].
// (3) A receive takes the first message of unexpected_ that it asks for; only if there is none it
//     goes into receives_. So no receive in receives_ asks for a message in unexpected_.
// (4) A message takes the first receive in receives_ that asks for it, when its head is read or,
//     where it was begun as unexpected, when it is complete. receives_ is in the order of posting.
// (5) unexpected_bytes_ is at most kMaxUnexpectedBytes. A message for which there is no room stays
//     in the stream, and so does all that its sender sends after it, until a receive asks for it.
// (6) A payload that is offered (DirectRead) stays where it is until the receiver has taken or
//     refused it, or the sender withdraws it; a refused one follows its head through the stream.
//
// The queues need no memory order of their own: PointToPoint calls them with its mutex held. That
// of the rings in shared memory is transport/message_streams.h.
//
// Thread safety: none.
class MessageQueues {
 public:
  static constexpr std::size_t kMaxUnexpectedBytes = 64 << 20;

  // Requires: both outlive this object.
  MessageQueues(Mesh& mesh, MessageStreams& streams);

  // Sends a whole message now if it is small, goes through a ring and waits for no other; else does
  // nothing and returns false.
  bool send_at_once(const PointToPointCall& call);
  // Takes such a message into `call`, if it is the next that its peer has sent, and complete.
  // kNo: wait for it by receive(), as it is not small or something else is under way.
  enum class AtOnce { kTaken, kNotYet, kNo };
  AtOnce receive_at_once(const PointToPointCall& call);
  // Both begin an operation, which moves with pump(). A receive whose message is kept here has
  // completed. Error(kInvalid) when that message is another one than asked for. `progress`: Work's.
  WorkPtr send(const PointToPointCall& call, Deadline deadline, std::weak_ptr<Progress> progress);
  WorkPtr receive(const PointToPointCall& call, Deadline deadline,
                  std::weak_ptr<Progress> progress);
  // An operation is under way.
  bool is_pending() const;
  // Moves what can be moved without waiting, once for every peer; returns whether anything was. A
  // large message that was offered and not asked for yet must be copied into a buffer here: unless
  // `takes_unexpected`, it is left with its sender for a moment, in case its receive is posted.
  // Error when a peer is lost or sent something else than was asked for.
  bool pump(bool takes_unexpected);
  // What pump() waits for.
  std::vector<Interest> interests() const;
  // Error(kTimeout), and for a receive that no rank is left to answer.
  void check_deadlines() const;
  ErrorContext context_of(std::string_view operation, int peer, Deadline deadline) const;
  void require_senders() const;
  // Ends what is under way.
  void fail_all(const Error& error);
  // What has arrived, or is on its way, and was not asked for.
  void warn_of_unreceived() const;
  // What operations that have ended kept alive. It may own this.
  bool has_dropped() const { return !dropped_.empty(); }
  std::vector<std::shared_ptr<void>> take_dropped() { return std::exchange(dropped_, {}); }

 private:
  struct Outgoing {
    PointToPointCall call;
    MessageHead head;
    Deadline deadline;
    WorkPtr work;
    std::size_t sent = 0;       // of what goes through the stream
    std::uint64_t address = 0;  // of a payload that is offered: all that follows its header
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
  // What is being read from one peer.
  struct Incoming {
    MessageHead head;
    std::uint64_t address = 0;          // of an offered payload,
    std::optional<Deadline> take_by;    // which waits to be asked for
    std::size_t got = 0;                // of head, address and payload together
    std::optional<Posted> receive;      // where the payload goes, or
    std::vector<std::byte> unexpected;  // here
    bool accepted = false;              // the head is read and the payload has a place
    bool ended = false;                 // the peer sends nothing more
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
  void let_go(PointToPointCall& call);
  std::optional<MessageHeader> next_unreceived(int peer) const;
  void match(int peer, const MessageHead& head, PointToPointCall& call) const;
  void require_matching(int peer, const MessageHead& head, const PointToPointCall& call) const;

  Mesh& mesh_;
  MessageStreams& streams_;
  std::vector<std::deque<Outgoing>> sends_;
  std::vector<Posted> receives_;  // in the order of posting
  std::vector<Incoming> incoming_;
  std::vector<std::deque<Unexpected>> unexpected_;
  std::size_t unexpected_bytes_ = 0;
  std::vector<std::shared_ptr<void>> dropped_;
};

}  // namespace paceline
