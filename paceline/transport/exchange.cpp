#include "paceline/transport/exchange.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>

#include <poll.h>

#include "paceline/core/check.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kHeaderBytes = sizeof(MessageHeader);

// `error` is 0 at the connection's end.
std::string broken_by(int error) {
  return std::string("is gone: ") +
         (error == 0 ? "it closed the connection" : std::strerror(error));
}

}  // namespace

Exchange::Exchange(Mesh& mesh) : mesh_(mesh), lanes_(static_cast<std::size_t>(mesh.world_size())) {}

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
  const bool is_first = number == lane.num_sent && !lane.sends.empty();
  const std::size_t sent = is_first ? lane.sends.front().sent : 0;
  return sent > kHeaderBytes ? sent - kHeaderBytes : 0;
}

std::size_t Exchange::received_bytes(int peer, std::uint64_t number) const {
  const auto& lane = lanes_[static_cast<std::size_t>(peer)];
  if (number < lane.num_received) return kAll;
  return number == lane.num_received ? lane.payload_got : 0;
}

bool Exchange::received_all(int peer) const {
  return lanes_[static_cast<std::size_t>(peer)].receives.empty();
}

std::vector<int> Exchange::waiting_for() const {
  std::vector<int> peers;
  for (int peer = 0; peer < mesh_.world_size(); ++peer) {
    if (!received_all(peer)) peers.push_back(peer);
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
  for (auto& lane : lanes_) lane = {};
}

void Exchange::run_until(const std::function<bool()>& done, const CheckHeader& check,
                         Deadline deadline, const std::function<void()>& on_slow) {
  constexpr auto kSlice = 10ms;
  for (auto& lane : lanes_) lane.is_quiet = false;
  while (!done() && !deadline.expired()) {
    if (pump(check)) continue;
    wait_for_peers(kSlice);
    if (pump(check)) continue;
    mesh_.throw_if_failed();  // who left in order ends its data channel, behind its last message
    on_slow();
  }
}

// Beginning with the next rank, and one message to each in turn: if all ranks served rank 0 first,
// its link would be crowded while the others idle.
bool Exchange::pump(const CheckHeader& check) {
  bool moved = false;
  for (int i = 1; i < mesh_.world_size(); ++i) {
    const int peer = (mesh_.rank() + i) % mesh_.world_size();
    moved |= pump_send(peer);
    moved |= pump_receives(peer, check);
  }
  return moved;
}

bool Exchange::pump_send(int peer) {
  auto& lane = lanes_[static_cast<std::size_t>(peer)];
  if (lane.sends.empty()) return false;
  auto& message = lane.sends.front();
  const ssize_t sent =
      send_rest(mesh_.wire(), peer, Channel::kData, message.header, message.payload, message.sent);
  if (sent < 0) {
    if (would_block(errno)) return false;
    mesh_.throw_lost(peer, broken_by(errno));
  }
  message.sent += static_cast<std::size_t>(sent);
  if (message.sent == kHeaderBytes + message.payload.size()) {
    if (message.header.tag != MessageHeader::kPresenceTag) ++lane.num_sent;
    lane.sends.pop_front();
  }
  return true;
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
      if (lane.header_got == 0) continue;  // it was a presence
    }
    if (lane.receives.empty()) {
      if (!lane.was_shown) check(peer, lane.header, false);
      lane.was_shown = true;
      break;
    }
    if (!lane.is_accepted) accept(peer, lane, check);
    const std::size_t before = lane.payload_got;
    const bool is_whole = read_payload(peer, lane);
    moved |= is_whole || lane.payload_got != before;
    if (!is_whole) break;
  }
  return moved;
}

// Who is expected to say nothing may have left, or may already pass memory around.
bool Exchange::begins_a_message(int peer, Lane& lane) const {
  if (lane.is_quiet) return false;
  std::uint32_t magic = 0;
  const ssize_t got =
      mesh_.wire().peek(peer, Channel::kData, std::as_writable_bytes(std::span(&magic, 1)));
  if (got == static_cast<ssize_t>(sizeof magic) && magic == MessageHeader::kMagic) return true;
  lane.is_quiet = got >= 0 || !would_block(errno);
  return false;
}

// True when all of it has come.
bool Exchange::read(int peer, std::byte* to, std::size_t wanted, std::size_t& got) const {
  if (got == wanted) return true;
  const ssize_t now = mesh_.receive(peer, Channel::kData, {to + got, wanted - got});
  if (now <= 0) {
    if (now < 0 && would_block(errno)) return false;
    mesh_.throw_lost(peer, broken_by(now == 0 ? 0 : errno));
  }
  got += static_cast<std::size_t>(now);
  return got == wanted;
}

bool Exchange::read_header(int peer, Lane& lane, const CheckHeader& check) {
  if (!read(peer, reinterpret_cast<std::byte*>(&lane.header), kHeaderBytes, lane.header_got)) {
    return false;
  }
  if (lane.header.magic != MessageHeader::kMagic) {
    fail(ErrorCode::kCorrupt, "rank {}: {} sent bytes that are no message", mesh_.rank(),
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
    fail(ErrorCode::kInvalid, "rank {}: {} sent {} bytes where {} were expected", mesh_.rank(),
         mesh_.describe(peer), lane.header.payload_bytes, expected);
  }
  lane.is_accepted = true;
}

bool Exchange::read_payload(int peer, Lane& lane) {
  const auto into = lane.receives.front();
  if (!read(peer, into.data(), into.size(), lane.payload_got)) return false;
  lane.receives.pop_front();
  ++lane.num_received;
  lane.header_got = lane.payload_got = 0;
  lane.was_shown = lane.is_accepted = false;
  return true;
}

void Exchange::wait_for_peers(std::chrono::milliseconds limit) {
  std::vector<Interest> interests;
  for (int peer = 0; peer < mesh_.world_size(); ++peer) {
    if (peer == mesh_.rank()) continue;
    const auto& lane = lanes_[static_cast<std::size_t>(peer)];
    const bool may_come = lane.header_got < kHeaderBytes && !lane.is_quiet;
    short events = 0;
    if (!lane.sends.empty()) events |= POLLOUT;
    if (!lane.receives.empty() || may_come) events |= POLLIN;
    if (events != 0) interests.push_back({peer, Channel::kData, events});
    interests.push_back({peer, Channel::kControl, POLLIN});
  }
  mesh_.wire().wait(interests, limit);
}

}  // namespace paceline
