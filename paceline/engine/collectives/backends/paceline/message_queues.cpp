#include "paceline/engine/collectives/backends/paceline/message_queues.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>

#include "paceline/engine/collectives/backends/paceline/slow_wait.h"
#include "paceline/engine/collectives/device_order.h"
#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/dtype_traits.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/core/timing.h"
#include "paceline/engine/transport/mesh.h"

namespace paceline {

Fingerprint fingerprint_of(const PointToPointCall& call) {
  Fingerprint fingerprint;
  fingerprint.op = Op::kSend;
  fingerprint.dtype = call.dtype;
  fingerprint.device = call.device;
  fingerprint.count = call.count;
  fingerprint.shape = call.shape;
  return fingerprint;
}

MessageHead MessageHead::of(const PointToPointCall& call) {
  MessageHead head;
  head.header.tag = call.tag;
  head.header.payload_bytes = bytes_of(call);
  Fingerprint fingerprint = fingerprint_of(call);
  if (call.sizes) {
    fingerprint.layout = static_cast<std::uint32_t>(call.sizes->size() + 1);
    std::copy(call.sizes->begin(), call.sizes->end(), head.sizes.begin());
  }
  head.header.fingerprint = std::bit_cast<FingerprintWords>(fingerprint);
  return head;
}

bool MessageHead::fits_payload() const {
  std::size_t bytes = size_of(std::bit_cast<Fingerprint>(header.fingerprint).dtype);
  for (const std::int64_t size : shape()) {
    if (size < 0 || __builtin_mul_overflow(bytes, static_cast<std::size_t>(size), &bytes)) {
      return false;
    }
  }
  return bytes == header.payload_bytes;
}

std::string MessageLabel::operator()() const {
  return fmt::format(
      "{} of {}{} {} {}, tag {}", what,
      any_shape ? "a tensor with its shape" : fmt::format("{} x {}", name_of(dtype), count),
      device == Device::kCpu ? "" : " in CUDA memory", what == name_of(Op::kSend) ? "to" : "from",
      peer == kAnySource ? "any rank" : rank_name(peer, peer_in_world), tag);
}

MessageLabel label_of(const char* what, const PointToPointCall& call, const Mesh& mesh) {
  const int in_world = call.peer == kAnySource ? kAnySource : mesh.in_world(call.peer);
  return {what,      call.dtype, call.count, call.device, call.allocator != nullptr,
          call.peer, in_world,   call.tag};
}

namespace {

// The shortest payload that is offered. A payload that fits into a ring has been delivered when the
// call that sends it returns; for a larger one, one copy and two system calls take less time than
// two copies.
constexpr std::size_t kOfferBytes = 256 << 10;
// The most bytes that are sent at once. The receiver of a larger payload reads its first piece
// while the next one is being written.
constexpr std::size_t kAtOnceBytes = 8 << 10;
// How long an offered payload waits for its receive to be posted.
constexpr std::chrono::microseconds kReceiveGrace{100};

bool asks_for(const PointToPointCall& call, int peer, std::uint32_t tag) {
  return (call.peer == peer || call.peer == kAnySource) && call.tag == tag;
}

// Makes a Work. The description of a blocking call's Work is never used, so it is not composed.
WorkPtr new_work(const char* what, const PointToPointCall& call, const Mesh& mesh,
                 std::weak_ptr<Progress> progress) {
  if (call.is_blocking) return std::make_shared<Work>([what] { return std::string(what); });
  return std::make_shared<Work>(label_of(what, call, mesh), nullptr, std::move(progress));
}

}  // namespace

MessageQueues::MessageQueues(Mesh& mesh, MessageStreams& streams)
    : mesh_(mesh),
      streams_(streams),
      sends_(static_cast<std::size_t>(mesh.world_size())),
      incoming_(sends_.size()),
      unexpected_(sends_.size()) {}

bool MessageQueues::send_at_once(const PointToPointCall& call) {
  const std::span<const std::byte> payload(call.data, bytes_of(call));
  if (payload.size() > kAtOnceBytes || !sends_[static_cast<std::size_t>(call.peer)].empty() ||
      !streams_.has_room(call.peer, sizeof(MessageHead) + payload.size())) {
    return false;
  }
  const MessageHead head = MessageHead::of(call);
  streams_.send(call.peer, head.bytes(), payload);
  return true;
}

MessageQueues::AtOnce MessageQueues::receive_at_once(const PointToPointCall& call) {
  if (call.peer == kAnySource || call.allocator || is_pending()) return AtOnce::kNo;
  const auto index = static_cast<std::size_t>(call.peer);
  Incoming& incoming = incoming_[index];
  if (!streams_.has_ring(call.peer) || !unexpected_[index].empty() || incoming.accepted) {
    return AtOnce::kNo;
  }
  if (!read_head(call.peer, incoming)) return incoming.ended ? AtOnce::kNo : AtOnce::kNotYet;
  const MessageHeader& header = incoming.head.header;
  if (header.is_offer() || header.tag != call.tag || header.payload_bytes > kAtOnceBytes ||
      !streams_.has_arrived(call.peer, header.payload_bytes)) {
    return AtOnce::kNo;
  }
  require_matching(call.peer, incoming.head, call);
  streams_.receive(call.peer, {call.data, header.payload_bytes});
  incoming = {};
  return AtOnce::kTaken;
}

WorkPtr MessageQueues::send(const PointToPointCall& call, Deadline deadline,
                            std::weak_ptr<Progress> progress) {
  auto work = new_work("send", call, mesh_, std::move(progress));
  sends_[static_cast<std::size_t>(call.peer)].push_back(
      {call, MessageHead::of(call), deadline, work});
  return work;
}

WorkPtr MessageQueues::receive(const PointToPointCall& call, Deadline deadline,
                               std::weak_ptr<Progress> progress) {
  auto work = new_work("recv", call, mesh_, std::move(progress));
  Posted posted{call, deadline, work};
  deliver_unexpected(posted);
  if (!work->is_completed()) receives_.push_back(std::move(posted));
  return work;
}

bool MessageQueues::is_pending() const {
  bool pending = !receives_.empty();
  for (const auto& queue : sends_) pending |= !queue.empty();
  for (const Incoming& incoming : incoming_) pending |= incoming.receive.has_value();
  return pending;
}

std::vector<Interest> MessageQueues::interests() const {
  std::vector<Interest> interests;
  for (int peer = 0; peer < mesh_.world_size(); ++peer) {
    if (peer == mesh_.rank()) continue;
    const auto index = static_cast<std::size_t>(peer);
    short events = 0;
    if (!sends_[index].empty()) events |= POLLOUT;
    const Incoming& incoming = incoming_[index];
    const bool is_read = incoming.got >= incoming.head.num_bytes_before_payload();
    const bool stalled = is_read && !incoming.accepted;
    if (!stalled && !incoming.ended) events |= POLLIN;
    if (events != 0) interests.push_back({peer, Channel::kPointToPoint, events});
  }
  return interests;
}

bool MessageQueues::pump(bool takes_unexpected) {
  bool moved = false;
  for (int peer = 0; peer < mesh_.world_size(); ++peer) {
    if (peer == mesh_.rank()) continue;
    moved |= pump_send(peer);
    moved |= pump_receive(peer, takes_unexpected);
  }
  return moved;
}

bool MessageQueues::pump_send(int peer) {
  auto& queue = sends_[static_cast<std::size_t>(peer)];
  if (queue.empty()) return false;
  Outgoing& message = queue.front();
  std::span<const std::byte> payload(message.call.data, bytes_of(message.call));
  if (message.sent == 0 && payload.size() >= kOfferBytes && streams_.can_offer(peer)) {
    message.head.header.magic = MessageHeader::kOfferMagic;
    message.address = std::bit_cast<std::uintptr_t>(payload.data());
    streams_.offer(peer);
  }
  const bool is_offer = message.head.header.is_offer();
  if (is_offer) payload = std::as_bytes(std::span(&message.address, 1));
  const std::size_t total = message.head.num_bytes() + payload.size();
  bool has_moved = false;
  if (message.sent < total) {
    const auto head = message.head.bytes();
    const std::size_t sent_payload = message.sent - std::min(message.sent, head.size());
    const ssize_t sent = streams_.send(peer, head.subspan(std::min(message.sent, head.size())),
                                       payload.subspan(sent_payload));
    if (sent < 0) {
      if (would_block(errno)) return false;
      mesh_.throw_if_own(errno, peer, "sending to");
      mesh_.throw_lost(peer,
                       fmt::format("is gone, so {} cannot complete: {}",
                                   label_of("send", message.call, mesh_)(), std::strerror(errno)));
    }
    message.sent += static_cast<std::size_t>(sent);
    has_moved = true;
  }
  if (message.sent < total) return has_moved;
  if (is_offer) {
    const auto offered = streams_.offered(peer);
    if (offered == MessageStreams::Offered::kOpen) return has_moved;
    if (offered == MessageStreams::Offered::kRefused) {
      // A refused payload follows its head through the stream.
      message.head.header.magic = MessageHeader::kMagic;
      message.sent = message.head.num_bytes();
      return true;
    }
  }
  end(message.call, *message.work, nullptr);
  queue.pop_front();
  return true;
}

bool MessageQueues::pump_receive(int peer, bool takes_unexpected) {
  Incoming& incoming = incoming_[static_cast<std::size_t>(peer)];
  if (incoming.ended) return false;
  if (!incoming.accepted) {
    if (!read_head(peer, incoming) || !accept_head(peer, incoming, takes_unexpected)) return false;
  }
  const std::size_t total =
      incoming.head.num_bytes_before_payload() + incoming.head.header.payload_bytes;
  if (incoming.got < total && !read_payload(peer, incoming)) return false;
  if (incoming.got == total) finish_message(peer, incoming);
  return true;
}

bool MessageQueues::read_payload(int peer, Incoming& incoming) {
  const std::size_t done = incoming.got - incoming.head.num_bytes_before_payload();
  std::byte* const to = incoming.receive ? incoming.receive->call.data : incoming.unexpected.data();
  const std::span<std::byte> rest(to + done, incoming.head.header.payload_bytes - done);
  if (incoming.head.header.is_offer()) {
    if (!read_offered(peer, incoming, rest)) {
      // A refused payload follows its head through the stream.
      incoming.head.header.magic = MessageHeader::kMagic;
      incoming.got = incoming.head.num_bytes();
    }
    return true;
  }
  const ssize_t got = streams_.receive(peer, rest);
  if (got < 0 && would_block(errno)) return false;
  if (got <= 0) mesh_.throw_lost(peer, "ended in the middle of a message");
  incoming.got += static_cast<std::size_t>(got);
  return true;
}

// Reads an offered payload; false if the offer is refused.
bool MessageQueues::read_offered(int peer, Incoming& incoming, std::span<std::byte> rest) {
  const std::uint64_t address = incoming.address + incoming.head.header.payload_bytes - rest.size();
  const auto got = streams_.read_offered(peer, address, rest);
  if (!got) return false;
  incoming.got += *got;
  return *got < rest.size() || streams_.take(peer);
}

// Reads the head, including the address of an offer; true once it is complete. The end of the
// connection is an error only for a receive that waits for this peer.
bool MessageQueues::read_head(int peer, Incoming& incoming) {
  const auto head = std::as_writable_bytes(std::span(&incoming.head, 1));
  const auto address = std::as_writable_bytes(std::span(&incoming.address, 1));
  while (incoming.got < sizeof(MessageHeader) ||
         incoming.got < incoming.head.num_bytes_before_payload()) {
    const std::size_t in_head =
        incoming.got < sizeof(MessageHeader) ? sizeof(MessageHeader) : incoming.head.num_bytes();
    const ssize_t got = streams_.receive(
        peer, incoming.got < in_head ? head.subspan(incoming.got, in_head - incoming.got)
                                     : address.subspan(incoming.got - in_head));
    if (got < 0 && would_block(errno)) return false;
    if (got <= 0) {
      incoming.ended = true;
      return false;
    }
    incoming.got += static_cast<std::size_t>(got);
    if (incoming.got == sizeof(MessageHeader)) require_header(peer, incoming.head);
    if (incoming.got == incoming.head.num_bytes()) require_shape(peer, incoming.head);
  }
  return true;
}

void MessageQueues::require_header(int peer, const MessageHead& head) const {
  const MessageHeader& header = head.header;
  const Fingerprint theirs = std::bit_cast<Fingerprint>(header.fingerprint);
  const bool is_message =
      header.magic == MessageHeader::kMagic || (header.is_offer() && streams_.has_ring(peer));
  if (is_message && head.num_sizes().value_or(0) <= kMaxMessageSizes &&
      static_cast<std::size_t>(theirs.dtype) < std::size(kAllDtypes)) {
    return;
  }
  fail(ErrorCode::kCorrupt, "{}: {} sent bytes that are not a message", mesh_.self(),
       mesh_.describe(peer));
}

void MessageQueues::require_shape(int peer, const MessageHead& head) const {
  const auto theirs = std::bit_cast<Fingerprint>(head.header.fingerprint);
  if (!head.num_sizes() || head.fits_payload()) return;
  fail(ErrorCode::kCorrupt, "{}: {} sent {} bytes as a tensor of {} of shape [{}]", mesh_.self(),
       mesh_.describe(peer), head.header.payload_bytes, name_of(theirs.dtype),
       fmt::join(head.shape(), ", "));
}

// Throws if a receive waits and no rank is left that could send to it.
void MessageQueues::require_senders() const {
  for (const Posted& posted : receives_) {
    int last_ended = -1;
    bool somebody = false;
    for (int peer = 0; peer < mesh_.world_size(); ++peer) {
      if (peer == mesh_.rank() || (posted.call.peer != kAnySource && posted.call.peer != peer)) {
        continue;
      }
      const bool ended = incoming_[static_cast<std::size_t>(peer)].ended;
      somebody |= !ended;
      if (ended) last_ended = peer;
    }
    if (!somebody) {
      mesh_.throw_lost(last_ended, "is gone without sending the message of " +
                                       label_of("recv", posted.call, mesh_)());
    }
  }
}

// Finds a destination for the payload; false while there is none.
bool MessageQueues::accept_head(int peer, Incoming& incoming, bool takes_unexpected) {
  const MessageHeader& header = incoming.head.header;
  for (auto posted = receives_.begin(); posted != receives_.end(); ++posted) {
    if (!asks_for(posted->call, peer, header.tag)) continue;
    match(peer, incoming.head, posted->call);
    incoming.receive = std::move(*posted);
    receives_.erase(posted);
    incoming.accepted = true;
    return true;
  }
  if (header.is_offer() && !takes_unexpected) {
    if (!incoming.take_by) incoming.take_by = Deadline::after(kReceiveGrace);
    if (!incoming.take_by->expired()) return false;
  }
  const std::size_t room = kMaxUnexpectedBytes - unexpected_bytes_;
  if (room < sizeof(MessageHeader) || header.payload_bytes > room - sizeof(MessageHeader))
    return false;
  incoming.unexpected.resize(header.payload_bytes);
  unexpected_bytes_ += sizeof(MessageHeader) + header.payload_bytes;
  incoming.accepted = true;
  return true;
}

// Fills in type, count and destination of a receive that did not know the shape of its message.
void MessageQueues::match(int peer, const MessageHead& head, PointToPointCall& call) const {
  require_matching(peer, head, call);
  if (!call.allocator) return;
  const Fingerprint theirs = std::bit_cast<Fingerprint>(head.header.fingerprint);
  try {
    call.data = call.allocator->make(theirs.dtype, head.shape());
  } catch (const std::exception& error) {
    fail(ErrorCode::kSystem, "{}: {}: no memory for {} bytes from {}: {}", mesh_.self(),
         label_of("recv", call, mesh_)(), head.header.payload_bytes, mesh_.describe(peer),
         error.what());
  }
  call.dtype = theirs.dtype;
  call.count = theirs.count;
}

void MessageQueues::require_matching(int peer, const MessageHead& head,
                                     const PointToPointCall& call) const {
  Fingerprint theirs = std::bit_cast<Fingerprint>(head.header.fingerprint);
  const std::size_t bytes = head.header.payload_bytes;
  if (call.allocator) {
    if (head.num_sizes()) return;
  } else {
    theirs.layout = 0;  // a shape that the receiver did not ask for is ignored
    if (theirs == fingerprint_of(call) && bytes == bytes_of(call)) return;
  }
  Fingerprint reshaped = theirs;
  reshaped.shape = call.shape;
  std::string what;
  if (theirs.device != call.device) {
    what = theirs.device == Device::kCpu ? " in host memory" : " in CUDA memory";
  } else if (call.allocator) {
    what = " without a shape";
  } else if (reshaped == fingerprint_of(call) && bytes == bytes_of(call)) {
    what = " of another shape or memory layout";
  }
  fail(ErrorCode::kInvalid, "{}: {} was posted, but {} sent {} x {}{} with that tag{}",
       mesh_.self(), label_of("recv", call, mesh_)(), mesh_.describe(peer), name_of(theirs.dtype),
       theirs.count, what,
       call.allocator || what.empty() || theirs.device != call.device
           ? ""
           : "; both ends need tensors of the same sizes and strides (tensor.contiguous() gives "
             "the default strides)");
}

void MessageQueues::finish_message(int peer, Incoming& incoming) {
  if (incoming.receive) {
    end(incoming.receive->call, *incoming.receive->work, nullptr, peer);
  } else {
    Unexpected message{incoming.head, std::move(incoming.unexpected)};
    // A receive may have been posted while the message was arriving.
    for (auto posted = receives_.begin(); posted != receives_.end(); ++posted) {
      if (!asks_for(posted->call, peer, message.head.header.tag)) continue;
      match(peer, message.head, posted->call);
      Posted claim = std::move(*posted);
      receives_.erase(posted);
      incoming = {};
      deliver(claim, peer, message);
      return;
    }
    unexpected_[static_cast<std::size_t>(peer)].push_back(std::move(message));
  }
  incoming = {};
}

// Completes `posted` if a message that matches it has already arrived.
void MessageQueues::deliver_unexpected(Posted& posted) {
  for (int peer = 0; peer < mesh_.world_size(); ++peer) {
    auto& queue = unexpected_[static_cast<std::size_t>(peer)];
    for (auto message = queue.begin(); message != queue.end(); ++message) {
      if (!asks_for(posted.call, peer, message->head.header.tag)) continue;
      match(peer, message->head, posted.call);
      const Unexpected taken = std::move(*message);
      queue.erase(message);
      deliver(posted, peer, taken);
      return;
    }
  }
}

// Requires: `posted` and the message match.
void MessageQueues::deliver(Posted& posted, int peer, const Unexpected& message) {
  if (!message.payload.empty())
    std::memcpy(posted.call.data, message.payload.data(), message.payload.size());
  unexpected_bytes_ -= sizeof(MessageHeader) + message.payload.size();
  end(posted.call, *posted.work, nullptr, peer);
}

ErrorContext MessageQueues::context_of(std::string_view operation, int peer,
                                       Deadline deadline) const {
  ErrorContext context{.operation = std::string(operation),
                       .group = mesh_.name(),
                       .ranks = {},
                       .deadline = deadline.timeout()};
  if (peer != kAnySource) context.ranks = {mesh_.in_world(peer)};
  return context;
}

void MessageQueues::check_deadlines() const {
  for (const auto& queue : sends_) {
    for (const Outgoing& message : queue) {
      if (put_off(message.deadline).expired()) {
        fail(ErrorCode::kTimeout, context_of("send", message.call.peer, message.deadline),
             "{}: {} timed out after {:.1f} s: {} does not receive it; {}", mesh_.self(),
             label_of("send", message.call, mesh_)(), seconds_since(message.begin),
             mesh_.describe(message.call.peer), kAdviceForLate);
      }
    }
  }
  for (const Incoming& incoming : incoming_) {
    if (incoming.receive && put_off(incoming.receive->deadline).expired()) {
      fail(ErrorCode::kTimeout,
           context_of("recv", incoming.receive->call.peer, incoming.receive->deadline),
           "{}: {} timed out after {:.1f} s, in the middle of the message; {}", mesh_.self(),
           label_of("recv", incoming.receive->call, mesh_)(),
           seconds_since(incoming.receive->begin), kAdviceForLate);
    }
  }
  for (const Posted& posted : receives_) {
    if (put_off(posted.deadline).expired()) {
      fail(ErrorCode::kTimeout, context_of("recv", posted.call.peer, posted.deadline),
           "{}: {} timed out after {:.1f} s: no message arrived{}; {}", mesh_.self(),
           label_of("recv", posted.call, mesh_)(), seconds_since(posted.begin),
           posted.call.peer == kAnySource ? "" : " from " + mesh_.describe(posted.call.peer),
           kAdviceForLate);
    }
  }
}

// Warns about messages that were not received. Their sends may have completed without an error, so
// this warning may be the only report of them.
void MessageQueues::warn_of_unreceived() const {
  for (int peer = 0; peer < mesh_.world_size(); ++peer) {
    if (peer == mesh_.rank()) continue;
    const auto header = next_unreceived(peer);
    if (!header) continue;
    const Fingerprint sent = std::bit_cast<Fingerprint>(header->fingerprint);
    log::warning(fmt::format(
        "group {} ends on {} with an unreceived message: {} x {} that {} sent with tag {}",
        mesh_.name(), mesh_.self(), name_of(sent.dtype), sent.count, mesh_.describe(peer),
        header->tag));
  }
}

// The first message from this peer that was not received: kept in unexpected_, partly read, or
// still in the channel.
std::optional<MessageHeader> MessageQueues::next_unreceived(int peer) const {
  const auto index = static_cast<std::size_t>(peer);
  if (!unexpected_[index].empty()) return unexpected_[index].front().head.header;
  const Incoming& incoming = incoming_[index];
  if (incoming.receive) return {};
  if (incoming.got >= sizeof(MessageHeader)) return incoming.head.header;
  MessageHeader header;
  const ssize_t got = streams_.peek(peer, std::as_writable_bytes(std::span(&header, 1)));
  const bool is_whole = incoming.got == 0 && got == static_cast<ssize_t>(sizeof(MessageHeader)) &&
                        (header.magic == MessageHeader::kMagic || header.is_offer());
  return is_whole ? std::optional(header) : std::nullopt;
}

// Ends an operation, apart from the steps that take_ended() leaves to the caller.
void MessageQueues::end(PointToPointCall& call, Work& work, const std::exception_ptr& error,
                        int source_rank) {
  if (work.end(error, source_rank)) ended_.works.push_back(work.shared_from_this());
  if (call.keep_alive) ended_.kept_alive.push_back(std::move(call.keep_alive));
}

void MessageQueues::Ended::settle() {
  for (const WorkPtr& work : works) work->call_back();
  works.clear();
  kept_alive.clear();
}

void MessageQueues::fail_all(const Error& error) {
  if (is_pending()) streams_.cancel();
  const auto cause_of = [&](const char* operation) {
    return std::make_exception_ptr(error.with({.operation = operation, .group = mesh_.name()}));
  };
  const auto send_cause = cause_of("send");
  const auto receive_cause = cause_of("recv");
  for (auto& queue : sends_) {
    for (Outgoing& message : queue) {
      if (message.head.header.is_offer()) streams_.withdraw(message.call.peer);
      end(message.call, *message.work, send_cause);
    }
    queue.clear();
  }
  for (Posted& posted : receives_) end(posted.call, *posted.work, receive_cause);
  receives_.clear();
  for (Incoming& incoming : incoming_) {
    if (incoming.receive) end(incoming.receive->call, *incoming.receive->work, receive_cause);
    incoming = {};
  }
}

}  // namespace paceline
