#include "paceline/engine/transport/socket_wire.h"

#include <algorithm>
#include <utility>

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/core/system/socket.h"

namespace paceline {

SocketWire::SocketWire(int world_size)
    : peers_(static_cast<std::size_t>(world_size)),
      wakeup_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wakeup_) throw system_error("eventfd()");
}

void SocketWire::connect(int peer, Channel channel, Fd socket, std::unique_ptr<Cipher> cipher) {
  if (channel == Channel::kControl) end_on_silence(socket, kSilenceLimit);
  auto& sockets = peers_[static_cast<std::size_t>(peer)];
  const int stream = static_cast<int>(channel) - static_cast<int>(Channel::kMoreData) + 1;
  sockets.num_streams = std::max(sockets.num_streams, stream + 1);
  sockets.channels[static_cast<int>(channel)] = std::move(socket);
  sockets.ciphers[static_cast<int>(channel)] = std::move(cipher);
}

int SocketWire::num_streams(int peer) const {
  return peers_[static_cast<std::size_t>(peer)].num_streams;
}

int SocketWire::socket(int peer, Channel channel) const {
  return peers_[static_cast<std::size_t>(peer)].channels[static_cast<int>(channel)].get();
}

Cipher* SocketWire::cipher(int peer, Channel channel) const {
  return peers_[static_cast<std::size_t>(peer)].ciphers[static_cast<int>(channel)].get();
}

ssize_t SocketWire::send(int peer, Channel channel, std::span<const std::byte> head,
                         std::span<const std::byte> rest) {
  return send_on(socket(peer, channel), cipher(peer, channel), head, rest);
}

ssize_t SocketWire::receive(int peer, Channel channel, std::span<std::byte> into) {
  return receive_on(socket(peer, channel), cipher(peer, channel), into);
}

ssize_t SocketWire::peek(int peer, Channel channel, std::span<std::byte> into) {
  return peek_on(socket(peer, channel), cipher(peer, channel), into);
}

void SocketWire::wait(std::span<Interest> interests, std::chrono::milliseconds limit) {
  std::vector<pollfd> entries;
  for (const Interest& interest : interests) {
    entries.push_back({socket(interest.peer, interest.channel), interest.events, 0});
  }
  if (poll_for(entries, limit) <= 0) return;
  for (std::size_t i = 0; i < entries.size(); ++i) interests[i].is_ready = entries[i].revents != 0;
}

void SocketWire::wait_or_wake(std::span<Interest> interests,
                              std::optional<std::chrono::milliseconds> limit) {
  std::vector<pollfd> entries{{wakeup_.get(), POLLIN, 0}};
  for (const Interest& interest : interests) {
    entries.push_back({socket(interest.peer, interest.channel), interest.events, 0});
  }
  poll_for(entries, limit.value_or(std::chrono::milliseconds(-1)));
  for (std::size_t i = 0; i < interests.size(); ++i) {
    interests[i].is_ready = entries[i + 1].revents != 0;
  }
  forget_wakeup();
}

void SocketWire::forget_wakeup() {
  std::uint64_t count;
  read_record(wakeup_.get(), count);
}

void SocketWire::wake() { ring(wakeup_.get()); }

}  // namespace paceline
