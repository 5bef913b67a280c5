#include "paceline/engine/transport/socket_wire.h"

#include <algorithm>
#include <utility>

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
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
  wait_with(-1, interests, limit);
}

void SocketWire::wait_or_wake(std::span<Interest> interests,
                              std::optional<std::chrono::milliseconds> limit) {
  wait_with(wakeup_.get(), interests, limit.value_or(std::chrono::milliseconds(-1)));
  forget_wakeup();
}

// poll() skips a negative descriptor.
void SocketWire::wait_with(int wakeup, std::span<Interest> interests,
                           std::chrono::milliseconds limit) const {
  std::vector<pollfd> entries{{wakeup, POLLIN, 0}};
  for (const Interest& interest : interests) {
    entries.push_back({socket(interest.peer, interest.channel), interest.events, 0});
  }
  poll_for(entries, limit);
  for (std::size_t i = 0; i < interests.size(); ++i) {
    interests[i].is_ready = entries[i + 1].revents != 0;
  }
}

void SocketWire::forget_wakeup() {
  std::uint64_t count;
  read_record(wakeup_.get(), count);
}

void SocketWire::wake() { ring(wakeup_.get()); }

}  // namespace paceline
