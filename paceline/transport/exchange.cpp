#include "paceline/transport/exchange.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>

#include <poll.h>
#include <sys/socket.h>

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

void Exchange::post_send(int peer, const MessageHeader& header,
                         std::span<const std::byte> payload) {
  lanes_[static_cast<std::size_t>(peer)].sends.push_back({header, payload});
}

void Exchange::post_receive(int peer, std::span<std::byte> into) {
  lanes_[static_cast<std::size_t>(peer)].receives.push_back({{}, into});
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
  for (const auto& lane : lanes_) {
    if (!lane.sends.empty() || !lane.receives.empty()) return false;
  }
  return true;
}

void Exchange::clear() {
  for (auto& lane : lanes_) lane = {};
}

void Exchange::run_until(const std::function<bool()>& done, const CheckHeader& check,
                         Deadline deadline, const std::function<void()>& on_slow) {
  constexpr auto kSlice = 10ms;
  while (!done() && !deadline.expired()) {
    if (pump_all(check)) continue;
    wait_for_sockets(kSlice);
    if (pump_all(check)) continue;
    mesh_.throw_if_failed();  // who left in order ends its data socket, behind its last message
    on_slow();
  }
}

bool Exchange::pump_all(const CheckHeader& check) {
  bool moved = false;
  for (int peer = 0; peer < mesh_.world_size(); ++peer) {
    if (peer == mesh_.rank()) continue;
    moved |= pump_sends(peer);
    moved |= pump_receives(peer, check);
  }
  return moved;
}

bool Exchange::pump_sends(int peer) {
  auto& sends = lanes_[static_cast<std::size_t>(peer)].sends;
  bool moved = false;
  while (!sends.empty()) {
    auto& message = sends.front();
    const ssize_t sent = send_rest(mesh_.socket(peer, Channel::kData), message.header,
                                   message.payload, message.sent);
    if (sent < 0) {
      if (would_block(errno)) return moved;
      mesh_.throw_lost(peer, broken_by(errno));
    }
    moved = true;
    message.sent += static_cast<std::size_t>(sent);
    if (message.sent < kHeaderBytes + message.payload.size()) return moved;
    sends.pop_front();
  }
  return moved;
}

bool Exchange::pump_receives(int peer, const CheckHeader& check) {
  auto& receives = lanes_[static_cast<std::size_t>(peer)].receives;
  bool moved = false;
  while (!receives.empty()) {
    auto& message = receives.front();
    const bool in_header = message.got < kHeaderBytes;
    auto* target = in_header ? reinterpret_cast<std::byte*>(&message.header) + message.got
                             : message.into.data() + (message.got - kHeaderBytes);
    const std::size_t wanted =
        in_header ? kHeaderBytes - message.got : message.into.size() - (message.got - kHeaderBytes);
    const ssize_t got =
        wanted == 0 ? 0 : ::recv(mesh_.socket(peer, Channel::kData), target, wanted, MSG_DONTWAIT);
    if (wanted > 0 && got <= 0) {
      if (got < 0 && would_block(errno)) return moved;
      mesh_.throw_lost(peer, broken_by(got == 0 ? 0 : errno));
    }
    moved = true;
    message.got += static_cast<std::size_t>(got);
    if (in_header && message.got == kHeaderBytes) {
      if (message.header.magic != MessageHeader::kMagic) {
        fail(ErrorCode::kCorrupt, "rank {}: {} sent bytes that are no message", mesh_.rank(),
             mesh_.describe(peer));
      }
      check(peer, message.header);
      if (message.header.payload_bytes != message.into.size()) {
        fail(ErrorCode::kInvalid, "rank {}: {} sent {} bytes where {} were expected", mesh_.rank(),
             mesh_.describe(peer), message.header.payload_bytes, message.into.size());
      }
    }
    if (message.got == kHeaderBytes + message.into.size()) receives.pop_front();
  }
  return moved;
}

void Exchange::wait_for_sockets(std::chrono::milliseconds limit) {
  std::vector<pollfd> entries;
  for (int peer = 0; peer < mesh_.world_size(); ++peer) {
    const auto& lane = lanes_[static_cast<std::size_t>(peer)];
    short events = 0;
    if (!lane.sends.empty()) events |= POLLOUT;
    if (!lane.receives.empty()) events |= POLLIN;
    if (events != 0) entries.push_back({mesh_.socket(peer, Channel::kData), events, 0});
    if (peer != mesh_.rank()) entries.push_back({mesh_.socket(peer, Channel::kControl), POLLIN, 0});
  }
  ::poll(entries.data(), entries.size(), static_cast<int>(limit.count()));
}

}  // namespace paceline
