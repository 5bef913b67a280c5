#include "paceline/engine/transport/loopback/wire.h"

#include <cerrno>
#include <utility>

#include <poll.h>

namespace paceline {
namespace {

constexpr std::chrono::hours kForever{24};

ssize_t would_wait() {
  errno = EAGAIN;
  return -1;
}

}  // namespace

LoopbackWire::LoopbackWire(std::shared_ptr<Room> room, int rank)
    : room_(std::move(room)), rank_(rank) {
  room_->enter(rank_);
}

LoopbackWire::~LoopbackWire() { room_->leave(rank_); }

ssize_t LoopbackWire::send(int peer, Channel channel, std::span<const std::byte> head,
                           std::span<const std::byte> rest) {
  if (room_->has_left(peer)) {
    errno = EPIPE;
    return -1;
  }
  const std::size_t taken = room_->pipe(rank_, peer, channel).push(head, rest);
  if (taken == 0 && head.size() + rest.size() > 0) return would_wait();
  if (channel == Channel::kControl) room_->tell_news(peer);
  room_->ring(peer, channel);
  return static_cast<ssize_t>(taken);
}

// Whether the peer has left is asked first: what it sent before that is in the pipe then.
ssize_t LoopbackWire::receive(int peer, Channel channel, std::span<std::byte> into) {
  const bool has_left = room_->has_left(peer);
  Pipe* const pipe = room_->pipe_if_any(peer, rank_, channel);
  const Pipe::Popped popped = pipe != nullptr ? pipe->pop(into) : Pipe::Popped{};
  if (popped.count > 0 && popped.was_full) room_->ring(peer, channel);
  if (popped.count > 0 || into.empty()) return static_cast<ssize_t>(popped.count);
  return has_left ? 0 : would_wait();
}

ssize_t LoopbackWire::peek(int peer, Channel channel, std::span<std::byte> into) {
  const bool has_left = room_->has_left(peer);
  const Pipe* const pipe = room_->pipe_if_any(peer, rank_, channel);
  const std::size_t got = pipe != nullptr ? pipe->peek(into) : 0;
  if (got > 0) return static_cast<ssize_t>(got);
  return has_left ? 0 : would_wait();
}

bool LoopbackWire::is_ready(const Interest& interest) const {
  if (room_->has_left(interest.peer)) return true;
  if ((interest.events & POLLIN) != 0) {
    const Pipe* in = room_->pipe_if_any(interest.peer, rank_, interest.channel);
    if (in != nullptr && !in->is_empty()) return true;
  }
  if ((interest.events & POLLOUT) == 0) return false;
  const Pipe* out = room_->pipe_if_any(rank_, interest.peer, interest.channel);
  return out == nullptr || !out->is_full();
}

// `seen` is the bell's count before anything that its sleeper must not miss.
void LoopbackWire::sleep(Bell& bell, std::span<Interest> interests, std::chrono::nanoseconds limit,
                         std::uint32_t seen) const {
  const auto look = [&] {
    bool any = false;
    for (Interest& interest : interests) any |= interest.is_ready = is_ready(interest);
    return any;
  };
  if (look() || limit.count() == 0) return;
  bell.sleep(seen, limit);
  look();
}

void LoopbackWire::wait(std::span<Interest> interests, std::chrono::milliseconds limit) {
  Bell& bell = room_->bell(rank_, Channel::kData);
  sleep(bell, interests, limit, bell.count());
}

// Whatever rang since the end of the last wait wakes it, a wake() included.
void LoopbackWire::wait_or_wake(std::span<Interest> interests,
                                std::optional<std::chrono::milliseconds> limit) {
  Bell& bell = room_->bell(rank_, Channel::kPointToPoint);
  const std::chrono::nanoseconds most = limit ? std::chrono::nanoseconds(*limit) : kForever;
  sleep(bell, interests, most, woken_at_);
  woken_at_ = bell.count();
}

void LoopbackWire::wake() { room_->bell(rank_, Channel::kPointToPoint).ring(); }

bool LoopbackWire::may_have_news() {
  const std::uint32_t now = room_->num_news(rank_);
  return std::exchange(news_seen_, now) != now;
}

}  // namespace paceline
