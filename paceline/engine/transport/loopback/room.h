#pragma once

// Where the ranks of a group that are threads of one process meet: a pipe for each pair, direction
// and channel, made when something is first sent through it, and two bells for each rank, on which
// it sleeps. No descriptor is needed, so a group may have many ranks.
//
// Thread safety: all methods may be called from any thread.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "paceline/engine/core/secret.h"
#include "paceline/engine/transport/loopback/pipe.h"
#include "paceline/engine/transport/wire.h"

namespace paceline {

// Wakes the threads that sleep until something happens. The caller reads the count, looks whether
// what it wants is there already, and sleeps only if the count is still the same.
class Bell {
 public:
  std::uint32_t count() const { return count_.load(); }
  void ring();
  void sleep(std::uint32_t count, std::chrono::nanoseconds limit);

 private:
  std::atomic<std::uint32_t> count_{0};
  std::atomic<int> num_asleep_{0};
};

class Room {
 public:
  // The room of this name, made by the first to come and gone with the last owner (the wire of each
  // rank in it). Error(kInvalid) when a group with another secret made it.
  static std::shared_ptr<Room> named(const std::string& name, int world_size, const Secret& secret);

  Room(std::string name, int world_size, const Secret& secret);
  ~Room();
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;

  void enter(int rank);
  // Its peers find no more than what it has sent.
  void leave(int rank);
  bool has_entered(int rank) const { return member(rank).has_entered.load(); }
  bool has_left(int rank) const { return member(rank).has_left.load(); }

  // Null when nothing was sent yet.
  Pipe* pipe_if_any(int from, int to, Channel channel) const;
  Pipe& pipe(int from, int to, Channel channel);

  // Of what is said on control and data channels, or of point-to-point messages.
  Bell& bell(int rank, Channel channel);
  // Rings the threads of `rank` that wait for this channel; both when it is the control channel.
  void ring(int rank, Channel channel);
  // How often something came on a control channel of `rank`, or a peer left.
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
  const Secret::Mac proof_;  // of the name, with the maker's secret
  std::vector<Member> members_;
  mutable std::vector<std::atomic<Pipe*>> pipes_;  // owned
};

}  // namespace paceline
