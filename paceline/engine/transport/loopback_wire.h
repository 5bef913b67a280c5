#pragma once

// The wire of ranks that are threads of one process: pipes in memory, the room in which the ranks
// meet and find the pipes, and the bells that wake sleeping ranks. The wire needs no descriptors,
// so a group may have many ranks.
//
// Thread safety: all methods of Pipe, Bell and Room may be called from any thread; LoopbackWire has
// the rules of Wire.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/transport/wire.h"

namespace paceline {

// A stream of bytes from one thread of a process to another. It holds up to kMaxBytes bytes; its
// memory grows as needed.
class Pipe {
 public:
  static constexpr std::size_t kMaxBytes = 256 << 10;

  // Appends bytes of `head` and then of `rest` while there is room. Returns the number of bytes; 0
  // if the pipe is full.
  std::size_t push(std::span<const std::byte> head, std::span<const std::byte> rest);
  struct Popped {
    std::size_t count = 0;  // bytes taken out; 0 if the pipe was empty
    bool was_full = false;  // a thread may be waiting to push
  };
  Popped pop(std::span<std::byte> into);
  // Copies bytes without taking them out; returns the number of bytes.
  std::size_t peek(std::span<std::byte> into) const;
  bool is_empty() const;
  bool is_full() const;

 private:
  // The following functions require mutex_.
  void make_room_for(std::size_t bytes);
  std::size_t append(std::span<const std::byte> bytes);
  std::size_t copy_out(std::span<std::byte> into) const;

  mutable std::mutex mutex_;  // guards the members below
  std::unique_ptr<std::byte[]> ring_;
  std::size_t capacity_ = 0;  // 0 or a power of two
  std::size_t begin_ = 0, size_ = 0;
};

// Wakes threads that wait for an event. A waiting thread reads the count, checks whether the event
// has already happened, and sleeps only if the count is still the same.
class Bell {
 public:
  std::uint32_t count() const { return count_.load(); }
  void ring();
  void sleep(std::uint32_t count, std::chrono::nanoseconds limit);

 private:
  std::atomic<std::uint32_t> count_{0};
  std::atomic<int> num_asleep_{0};
};

// The place where the ranks of a group meet. It has a pipe for each pair, direction and channel,
// made when the first bytes are sent, and two bells for each rank.
class Room {
 public:
  // The room of this name. The first rank to arrive makes the room, and the room is destroyed with
  // its last owner; the owners are the wires of its ranks. Error(kInvalid) if a rank with another
  // secret made the room.
  static std::shared_ptr<Room> named(const std::string& name, int world_size, const Secret& secret);

  Room(std::string name, int world_size, const Secret& secret);
  ~Room();
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;

  void enter(int rank);
  // Marks `rank` as having left; its peers can still receive the bytes that it has sent.
  void leave(int rank);
  bool has_entered(int rank) const { return member(rank).has_entered.load(); }
  bool has_left(int rank) const { return member(rank).has_left.load(); }

  // The pipe, or null if nothing has been sent through it yet.
  Pipe* pipe_if_any(int from, int to, Channel channel) const;
  Pipe& pipe(int from, int to, Channel channel);

  // A rank has one bell for its control and data channels, and one for point-to-point messages.
  Bell& bell(int rank, Channel channel);
  // Wakes the thread of `rank` that waits for this channel, or both threads if it is the control
  // channel.
  void ring(int rank, Channel channel);
  // The number of times that bytes arrived on a control channel of `rank` or a peer left.
  std::uint32_t num_news(int rank) const { return member(rank).num_news.load(); }
  void tell_news(int rank) { ++members_[static_cast<std::size_t>(rank)].num_news; }

 private:
  struct Member {
    std::atomic<bool> has_entered{false}, has_left{false};
    std::atomic<std::uint32_t> num_news{0};
    Bell data_bell, point_to_point_bell;
  };
  const Member& member(int rank) const { return members_[static_cast<std::size_t>(rank)]; }
  std::atomic<Pipe*>& slot(int from, int to, Channel channel) const;

  const std::string name_;
  const int world_size_;
  const Secret::Mac proof_;  // a MAC of the name with the secret of the rank that made the room
  std::vector<Member> members_;
  mutable std::vector<std::atomic<Pipe*>> pipes_;  // owning pointers
};

// The wire of a rank whose peers are all threads of its process: pipes in memory. A peer that
// leaves without a goodbye looks to the others like a process that died.
class LoopbackWire : public Wire {
 public:
  // Enters `room` as `rank`; the destructor leaves it.
  LoopbackWire(std::shared_ptr<Room> room, int rank);
  ~LoopbackWire() override;
  LoopbackWire(const LoopbackWire&) = delete;
  LoopbackWire& operator=(const LoopbackWire&) = delete;

  const char* name() const override { return "loopback"; }
  bool is_connected(int peer) const override { return room_->has_entered(peer); }
  ssize_t send(int peer, Channel channel, std::span<const std::byte> head,
               std::span<const std::byte> rest) override;
  ssize_t receive(int peer, Channel channel, std::span<std::byte> into) override;
  ssize_t peek(int peer, Channel channel, std::span<std::byte> into) override;
  void wait(std::span<Interest> interests, std::chrono::milliseconds limit) override;
  void wait_or_wake(std::span<Interest> interests,
                    std::optional<std::chrono::milliseconds> limit) override;
  void wake() override;
  bool may_have_news() override;
  int socket(int, Channel) const override { return -1; }

 private:
  bool is_ready(const Interest& interest) const;
  void sleep(Bell& bell, std::span<Interest> interests, std::chrono::nanoseconds limit,
             std::uint32_t seen) const;

  const std::shared_ptr<Room> room_;
  const int rank_;
  std::uint32_t news_seen_ = 0;
  std::uint32_t woken_at_ = 0;  // the count of the point-to-point bell when the last wait ended
};

}  // namespace paceline
