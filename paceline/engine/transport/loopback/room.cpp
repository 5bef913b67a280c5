#include "paceline/engine/transport/loopback/room.h"

#include <mutex>
#include <unordered_map>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/futex.h"

namespace paceline {
namespace {

// The threads of a process have nothing else in common. Kept until the process ends.
struct Rooms {
  std::mutex mutex;  // guards by_name
  std::unordered_map<std::string, std::weak_ptr<Room>> by_name;
};
Rooms& rooms() {
  static auto* const instance = new Rooms;
  return *instance;
}

}  // namespace

// Both sides order their two accesses alike: either the ringer sees the sleeper, or the sleeper the
// new count.
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
  std::shared_ptr<Room> room;  // its end takes the mutex too
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

}  // namespace paceline
