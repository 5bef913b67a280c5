#include "paceline/engine/transport/loopback_wire.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <utility>

#include <poll.h>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/system/thread.h"

namespace paceline {

std::size_t Pipe::push(std::span<const std::byte> head, std::span<const std::byte> rest) {
  const std::lock_guard lock(mutex_);
  make_room_for(std::min(size_ + head.size() + rest.size(), kMaxBytes));
  return append(head) + append(rest);
}

Pipe::Popped Pipe::pop(std::span<std::byte> into) {
  const std::lock_guard lock(mutex_);
  const Popped popped{copy_out(into), size_ == kMaxBytes};
  size_ -= popped.count;
  if (popped.count > 0) begin_ = (begin_ + popped.count) & (capacity_ - 1);
  return popped;
}

std::size_t Pipe::peek(std::span<std::byte> into) const {
  const std::lock_guard lock(mutex_);
  return copy_out(into);
}

bool Pipe::is_empty() const {
  const std::lock_guard lock(mutex_);
  return size_ == 0;
}

bool Pipe::is_full() const {
  const std::lock_guard lock(mutex_);
  return size_ == kMaxBytes;
}

void Pipe::make_room_for(std::size_t bytes) {
  if (bytes <= capacity_) return;
  const std::size_t capacity = std::bit_ceil(bytes);
  auto ring = std::make_unique_for_overwrite<std::byte[]>(capacity);
  copy_out({ring.get(), size_});
  ring_ = std::move(ring);
  capacity_ = capacity;
  begin_ = 0;
}

std::size_t Pipe::append(std::span<const std::byte> bytes) {
  const std::size_t count = std::min(bytes.size(), capacity_ - size_);
  if (count == 0) return 0;
  const std::size_t at = (begin_ + size_) & (capacity_ - 1);
  const std::size_t until_wrap = std::min(count, capacity_ - at);
  std::memcpy(ring_.get() + at, bytes.data(), until_wrap);
  if (count > until_wrap) std::memcpy(ring_.get(), bytes.data() + until_wrap, count - until_wrap);
  size_ += count;
  return count;
}

std::size_t Pipe::copy_out(std::span<std::byte> into) const {
  const std::size_t count = std::min(into.size(), size_);
  if (count == 0) return 0;
  const std::size_t until_wrap = std::min(count, capacity_ - begin_);
  std::memcpy(into.data(), ring_.get() + begin_, until_wrap);
  if (count > until_wrap) std::memcpy(into.data() + until_wrap, ring_.get(), count - until_wrap);
  return count;
}

namespace {

// The rooms of the process, by name. The table is global, because ranks that are threads share
// nothing else, and is never destroyed; each room is destroyed with its last owner.
struct Rooms {
  std::mutex mutex;  // guards by_name
  std::unordered_map<std::string, std::weak_ptr<Room>> by_name;
};
Rooms& rooms() {
  static auto* const instance = new Rooms;
  return *instance;
}

}  // namespace

// No ring is lost. The ringer raises count_, then loads num_asleep_; the sleeper raises
// num_asleep_, then futex_wait() compares count_ with the count that the sleeper read before. These
// accesses are sequentially consistent, so either the ringer sees the sleeper and wakes it, or the
// sleeper sees the new count and does not sleep.
void Bell::ring() {
  ++count_;
  if (num_asleep_.load() > 0) futex_wake_all(count_);
}

void Bell::sleep(std::uint32_t count, std::chrono::nanoseconds limit) {
  ++num_asleep_;
  futex_wait(count_, count, limit);
  --num_asleep_;
}

std::shared_ptr<Room> Room::named(const std::string& name, int world_size, const Secret& secret) {
  // Declared before the lock, because destroying a room also takes the mutex.
  std::shared_ptr<Room> room;
  {
    const std::lock_guard lock(rooms().mutex);
    auto& entry = rooms().by_name[name];
    room = entry.lock();
    if (!room) {
      room = std::make_shared<Room>(name, world_size, secret);
      entry = room;
    }
  }
  check(secret.verify(as_bytes(name), room->proof_),
        "another thread of this process has another secret for the same group");
  return room;
}

Room::Room(std::string name, int world_size, const Secret& secret)
    : name_(std::move(name)),
      world_size_(world_size),
      proof_(secret.authenticate(as_bytes(name_))),
      members_(static_cast<std::size_t>(world_size)),
      pipes_(members_.size() * members_.size() * kNumChannels) {}

Room::~Room() {
  for (const auto& pipe : pipes_) delete pipe.load();
  const std::lock_guard lock(rooms().mutex);
  const auto entry = rooms().by_name.find(name_);
  if (entry != rooms().by_name.end() && entry->second.expired()) rooms().by_name.erase(entry);
}

void Room::enter(int rank) {
  members_[static_cast<std::size_t>(rank)].has_entered = true;
  for (int peer = 0; peer < world_size_; ++peer) bell(peer, Channel::kData).ring();
}

void Room::leave(int rank) {
  members_[static_cast<std::size_t>(rank)].has_left = true;
  for (int peer = 0; peer < world_size_; ++peer) {
    if (peer == rank) continue;
    tell_news(peer);
    ring(peer, Channel::kControl);
  }
}

std::atomic<Pipe*>& Room::slot(int from, int to, Channel channel) const {
  const auto pair = static_cast<std::size_t>(from) * members_.size() + static_cast<std::size_t>(to);
  return pipes_[pair * kNumChannels + static_cast<std::size_t>(channel)];
}

Pipe* Room::pipe_if_any(int from, int to, Channel channel) const {
  return slot(from, to, channel).load();
}

Pipe& Room::pipe(int from, int to, Channel channel) {
  auto& place = slot(from, to, channel);
  Pipe* there = place.load();
  if (there != nullptr) return *there;
  auto made = std::make_unique<Pipe>();
  return place.compare_exchange_strong(there, made.get()) ? *made.release() : *there;
}

Bell& Room::bell(int rank, Channel channel) {
  auto& owner = members_[static_cast<std::size_t>(rank)];
  return channel == Channel::kPointToPoint ? owner.point_to_point_bell : owner.data_bell;
}

void Room::ring(int rank, Channel channel) {
  bell(rank, channel).ring();
  if (channel == Channel::kControl) bell(rank, Channel::kPointToPoint).ring();
}

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

// Checks first whether the peer has left: if it has, everything that it sent is already in the
// pipe.
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

// Sleeps until the bell rings, unless an interest is ready. `seen` is the bell's count, read before
// any event that the sleeper must not miss.
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

// Any ring of the bell since the end of the last wait ends this wait; wake() also rings the bell.
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
