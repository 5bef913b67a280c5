#include "paceline/engine/transport/exchange.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>

#include <poll.h>

#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/core/check.h"

namespace paceline {

namespace {

using namespace std::chrono_literals;

constexpr std::size_t kHeaderBytes = sizeof(MessageHeader);

// How the connection broke: `error` is an errno, or 0 if the peer closed it.
std::string broken_by(int error) {
  return std::string("is gone: ") +
         (error == 0 ? "it closed the connection" : std::strerror(error));
}

}  // namespace

Exchange::Exchange(Mesh& mesh) : mesh_(mesh) { reset_lanes(); }

void Exchange::reset_lanes() {
  lanes_ = std::vector<Lane>(static_cast<std::size_t>(mesh_.world_size()));
  for (int peer = 0; peer < mesh_.world_size(); ++peer) {
    lanes_[static_cast<std::size_t>(peer)].streams.resize(
        static_cast<std::size_t>(mesh_.wire().num_streams(peer)));
  }
}

std::uint64_t Exchange::post_send(int peer, const MessageHeader& header,
                                  std::span<const std::byte> payload) {
  auto& lane = lanes_[static_cast<std::size_t>(peer)];
  lane.sends.push_back({header, payload});
  return lane.num_posted++;
}

void Exchange::post_presence(int peer, MessageHeader header) {
  header.tag = MessageHeader::kPresenceTag;
  header.payload_bytes = 0;
  lanes_[static_cast<std::size_t>(peer)].sends.push_back({header, {}});
}

std::uint64_t Exchange::post_receive(int peer, std::span<std::byte> into) {
  auto& lane = lanes_[static_cast<std::size_t>(peer)];
  lane.receives.push_back(into);
  return lane.num_received + lane.receives.size() - 1;
}

std::size_t Exchange::sent_bytes(int peer, std::uint64_t number) const {
  const auto& lane = lanes_[static_cast<std::size_t>(peer)];
  if (number < lane.num_sent) return kAll;
  if (number > lane.num_sent || lane.sends.empty()) return 0;
  const Stripes stripes(lane.sends.front().payload.size(), lane.streams.size());
  std::size_t sent = kAll;
  for (std::size_t i = 0; i < lane.streams.size(); ++i) {
    const Stream& stream = lane.streams[i];
    if (stream.message > lane.num_gone) continue;
    const std::size_t head = i == 0 ? std::min(stream.sent, kHeaderBytes) : 0;
    sent = std::min(sent, stripes.next(i, stream.sent - head).offset);
  }
  return sent;
}

std::size_t Exchange::received_bytes(int peer, std::uint64_t number) const {
  const auto& lane = lanes_[static_cast<std::size_t>(peer)];
  if (number < lane.num_received) return kAll;
  if (number > lane.num_received) return 0;
  const Stripes stripes(lane.receives.front().size(), lane.streams.size());
  std::size_t got = kAll;
  for (std::size_t i = 0; i < lane.streams.size(); ++i) {
    got = std::min(got, stripes.next(i, lane.streams[i].got).offset);
  }
  return got;
}

bool Exchange::received_all(int peer) const {
  return lanes_[static_cast<std::size_t>(peer)].receives.empty();
}

std::vector<int> Exchange::waiting_for() const {
  std::vector<int> peers;
  for (int peer = 0; peer < mesh_.world_size(); ++peer) {
    const auto& lane = lanes_[static_cast<std::size_t>(peer)];
    if (!lane.receives.empty() || lane.num_sent != lane.num_posted) peers.push_back(peer);
  }
  return peers;
}

bool Exchange::idle() const {
  return std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) {
    return lane.receives.empty() && lane.num_sent == lane.num_posted;
  });
}

void Exchange::clear() {
  mesh_.wire().cancel(Channel::kData);
  reset_lanes();
}

void Exchange::run_until(const std::function<bool()>& done, const CheckHeader& check,
                         Deadline deadline, const std::function<void()>& on_slow) {
  constexpr auto kSlice = 10ms;
  // A header that arrived early was checked against the previous call; also check it against the
  // current call.
  for (auto& lane : lanes_) lane.is_quiet = lane.was_shown = false;
  Vigil vigil;
  std::vector<int> left;  // peers that said goodbye
  while (!done() && !vigil.sees_passed(deadline)) {
    if (pump(check)) continue;
    wait_for_peers(kSlice, left);
    if (pump(check)) continue;
    WaitCheck::run();
    left = mesh_.throw_if_failed();  // a clean exit is noticed when the data channel ends
    on_slow();
  }
}

// Serves the peers in turn, beginning with the next rank: if all ranks served rank 0 first, its
// link would be congested while the others idle.
bool Exchange::pump(const CheckHeader& check) {
  bool moved = false;
  for (int i = 1; i < mesh_.world_size(); ++i) {
    const int peer = (mesh_.rank() + i) % mesh_.world_size();
    moved |= pump_sends(peer);
    moved |= pump_receives(peer, check);
  }
  return moved;
}

bool Exchange::pump_sends(int peer) {
  auto& lane = lanes_[static_cast<std::size_t>(peer)];
  if (lane.sends.empty()) return false;
  bool moved = false;
  for (std::size_t stream = 0; stream < lane.streams.size(); ++stream) {
    moved |= pump_stream(peer, lane, stream);
  }
  if (moved) drop_sent(lane);
  return moved;
}

const Exchange::Outgoing* Exchange::message_of(Lane& lane, std::size_t number) const {
  Stream& stream = lane.streams[number];
  for (; stream.message - lane.num_gone < lane.sends.size(); ++stream.message, stream.sent = 0) {
    const Outgoing& message = lane.sends[stream.message - lane.num_gone];
    const Stripes stripes(message.payload.size(), lane.streams.size());
    if (stream.sent < stripes.share(number) + (number == 0 ? kHeaderBytes : 0)) return &message;
  }
  return nullptr;
}

bool Exchange::pump_stream(int peer, Lane& lane, std::size_t number) {
  const Outgoing* message = message_of(lane, number);
  if (message == nullptr) return false;
  Stream& stream = lane.streams[number];
  const auto head = std::as_bytes(std::span(&message->header, number == 0 ? 1U : 0U));
  const std::size_t head_sent = std::min(stream.sent, head.size());
  const auto run =
      Stripes(message->payload.size(), lane.streams.size()).next(number, stream.sent - head_sent);
  ssize_t sent = mesh_.wire().send(peer, data_channel(number), head.subspan(head_sent),
                                   message->payload.subspan(run.offset, run.count));
  if (sent < 0) {
    if (would_block(errno)) return false;
    mesh_.throw_if_own(errno, peer, "sending to");
    const bool is_presence = message->header.tag == MessageHeader::kPresenceTag;
    if (!is_presence) mesh_.throw_lost(peer, broken_by(errno));
    // A peer that has finished the call may have left. If this rank still needs bytes from that
    // peer, the receive fails.
    sent = static_cast<ssize_t>(head.size() - head_sent);
  }
  stream.sent += static_cast<std::size_t>(sent);
  return true;
}

// Drops the messages at the front that all streams have sent completely.
void Exchange::drop_sent(Lane& lane) {
  std::uint64_t first_left = lane.num_gone + lane.sends.size();
  for (std::size_t number = 0; number < lane.streams.size(); ++number) {
    message_of(lane, number);
    first_left = std::min(first_left, lane.streams[number].message);
  }
  for (; lane.num_gone < first_left; ++lane.num_gone) {
    if (lane.sends.front().header.tag != MessageHeader::kPresenceTag) ++lane.num_sent;
    lane.sends.pop_front();
  }
}

bool Exchange::pump_receives(int peer, const CheckHeader& check) {
  auto& lane = lanes_[static_cast<std::size_t>(peer)];
  bool moved = false;
  for (;;) {
    if (lane.header_got < kHeaderBytes) {
      if (lane.receives.empty() && lane.header_got == 0 && !begins_a_message(peer, lane)) break;
      const std::size_t before = lane.header_got;
      const bool is_whole = read_header(peer, lane, check);
      moved |= lane.header_got != before;
      if (!is_whole) break;
      if (lane.header_got == 0) continue;  // the header was a presence message
    }
    if (lane.receives.empty()) {
      if (!lane.was_shown) check(peer, lane.header, false);
      lane.was_shown = true;
      break;
    }
    if (!lane.is_accepted) accept(peer, lane, check);
    if (!read_payload(peer, lane, moved)) break;
  }
  return moved;
}

// Peeks, because a rank from which nothing is expected may have left, or its next bytes may already
// belong to an exchange of memory handles.
bool Exchange::begins_a_message(int peer, Lane& lane) const {
  if (lane.is_quiet) return false;
  std::uint32_t magic = 0;
  const ssize_t got =
      mesh_.wire().peek(peer, Channel::kData, std::as_writable_bytes(std::span(&magic, 1)));
  if (got == static_cast<ssize_t>(sizeof magic) && magic == MessageHeader::kMagic) return true;
  const bool is_cut = got > 0 && got < static_cast<ssize_t>(sizeof magic);
  lane.is_quiet = !is_cut && (got >= 0 || !would_block(errno));
  return false;
}

// Reads bytes that have arrived; returns their number, 0 if there are none.
std::size_t Exchange::read(int peer, Channel channel, std::span<std::byte> into) const {
  const ssize_t got = mesh_.receive(peer, channel, into);
  if (got > 0) return static_cast<std::size_t>(got);
  if (got < 0 && would_block(errno)) return 0;
  mesh_.throw_lost(peer, broken_by(got == 0 ? 0 : errno));
}

// Reads the bytes of a header that have arrived; returns true once the header is complete.
bool Exchange::read_header(int peer, Lane& lane, const CheckHeader& check) {
  const auto header = std::as_writable_bytes(std::span(&lane.header, 1));
  lane.header_got += read(peer, Channel::kData, header.subspan(lane.header_got));
  if (lane.header_got < kHeaderBytes) return false;
  if (lane.header.magic != MessageHeader::kMagic) {
    fail(ErrorCode::kCorrupt, "{}: {} sent bytes that are not a message", mesh_.self(),
         mesh_.describe(peer));
  }
  if (lane.header.tag == MessageHeader::kPresenceTag) {
    lane.header_got = 0;
    check(peer, lane.header, false);
  }
  return true;
}

void Exchange::accept(int peer, Lane& lane, const CheckHeader& check) {
  check(peer, lane.header, true);
  const std::size_t expected = lane.receives.front().size();
  if (lane.header.payload_bytes != expected) {
    fail(ErrorCode::kInvalid, "{}: {} sent {} bytes where {} were expected", mesh_.self(),
         mesh_.describe(peer), lane.header.payload_bytes, expected);
  }
  lane.is_accepted = true;
}

// Reads the bytes of a payload that have arrived; returns true once the payload is complete.
bool Exchange::read_payload(int peer, Lane& lane, bool& moved) {
  bool is_whole = true;
  for (std::size_t stream = 0; stream < lane.streams.size(); ++stream) {
    is_whole &= read_share(peer, lane, stream, moved);
  }
  if (!is_whole) return false;
  moved = true;
  lane.receives.pop_front();
  ++lane.num_received;
  lane.header_got = 0;
  for (Stream& stream : lane.streams) stream.got = 0;
  lane.was_shown = lane.is_accepted = false;
  return true;
}

// Like read_payload(), for the part that is sent over one stream. After a short read, the remaining
// bytes are read only once more of them have arrived.
bool Exchange::read_share(int peer, Lane& lane, std::size_t stream, bool& moved) {
  const auto into = lane.receives.front();
  const Stripes stripes(into.size(), lane.streams.size());
  std::size_t& done = lane.streams[stream].got;
  for (auto run = stripes.next(stream, done); run.count > 0; run = stripes.next(stream, done)) {
    const std::size_t got = read(peer, data_channel(stream), into.subspan(run.offset, run.count));
    done += got;
    moved |= got > 0;
    if (got < run.count) return false;
  }
  return true;
}

short Exchange::events_of(Lane& lane, std::size_t number) const {
  const bool may_come =
      number == 0 && lane.header_got < kHeaderBytes && (!lane.receives.empty() || !lane.is_quiet);
  const auto has_more = [&] {
    const Stripes stripes(lane.receives.front().size(), lane.streams.size());
    return lane.streams[number].got < stripes.share(number);
  };
  const bool comes = may_come || (lane.is_accepted && has_more());
  return static_cast<short>((message_of(lane, number) != nullptr ? POLLOUT : 0) |
                            (comes ? POLLIN : 0));
}

// Leaves out the control channels of the peers in `left`: these channels have ended, so a poll
// would return at once.
void Exchange::wait_for_peers(std::chrono::milliseconds limit, std::span<const int> left) {
  std::vector<Interest> interests;
  for (int peer = 0; peer < mesh_.world_size(); ++peer) {
    if (peer == mesh_.rank()) continue;
    auto& lane = lanes_[static_cast<std::size_t>(peer)];
    for (std::size_t stream = 0; stream < lane.streams.size(); ++stream) {
      const short events = events_of(lane, stream);
      if (events != 0) interests.push_back({peer, data_channel(stream), events});
    }
    if (std::find(left.begin(), left.end(), peer) == left.end()) {
      interests.push_back({peer, Channel::kControl, POLLIN});
    }
  }
  mesh_.wire().wait(interests, limit);
}

}  // namespace paceline
