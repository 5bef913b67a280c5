#pragma once

// What the simulator knows of messages, ranks and channels, and of what will happen. Values, and a
// part of simulator.cpp alone.

#include <cstdint>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "paceline/engine/collectives/algorithms/schedule.h"
#include "paceline/engine/collectives/simulation/ranges_in_use.h"

namespace paceline::simulation {

inline constexpr double kNever = -1;

struct Message {
  int from = 0;              // who is simulated as its sender,
  int to = 0;                // and its receiver,
  int source = 0;            // and the rank that this one names as its sender
  std::uint32_t number = 0;  // among the sender's
  const Step* send = nullptr;
  const Step* receive = nullptr;  // null until it is posted
  double arrival = kNever;
  bool is_inside = false;  // of a host
  bool has_started = false;
  bool is_received = false;
};

struct Rank {
  Schedule schedule;
  std::size_t next = 0;  // step
  double clock = 0;
  double moves_free = 0;  // when its processor is done with what sockets inside the host move
  double hears_free = 0;  // when it has dealt with what arrived
  bool is_busy = false;   // a resume is under way
  bool meets = false;
  std::size_t outstanding = 0;
  std::size_t sends_of_others = 0;  // from the memory of other ranks
  std::uint32_t num_sends = 0;
  std::unordered_map<int, std::size_t> expected;  // receives under way, by peer
  RangesInUse in_use;
};

struct Event {
  enum class Kind : std::uint8_t { kResume, kStart, kReach, kCome, kLeave, kArrive };
  double time;
  // Of equal times: by kind, then by the message's number among its sender's and the sender's
  // position in its host, which is the same on every host; then first made, first served.
  std::uint64_t turn;
  std::uint64_t order;
  Kind kind;
  std::uint64_t subject;  // a rank or a message
  bool operator>(const Event& other) const {
    return std::tie(time, turn, order) > std::tie(other.time, other.turn, other.order);
  }
};

// What one rank has sent another and is not yet received, or the other way round.
class Backlog {
 public:
  bool has_sends() const { return first_ < waiting_.size() && are_sends_; }
  bool has_receives() const { return first_ < waiting_.size() && !are_sends_; }
  // Requires: none of the other kind waits.
  void push_send(std::uint64_t message) { push(message, true); }
  void push_receive(const Step& step) { push(reinterpret_cast<std::uintptr_t>(&step), false); }
  std::uint64_t pop_send() { return waiting_[first_++]; }
  const Step* pop_receive() { return reinterpret_cast<const Step*>(waiting_[first_++]); }

 private:
  void push(std::uint64_t one, bool is_send) {
    if (first_ == waiting_.size()) {
      waiting_.clear();
      first_ = 0;
      are_sends_ = is_send;
    }
    waiting_.push_back(one);
  }

  std::vector<std::uint64_t> waiting_;  // messages, or addresses of steps
  std::size_t first_ = 0;
  bool are_sends_ = false;
};

}  // namespace paceline::simulation
