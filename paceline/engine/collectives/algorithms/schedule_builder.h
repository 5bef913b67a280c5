#pragma once

// The builder with which all algorithms make their schedules. It leaves out transfers, reduces and
// copies of 0 elements, so both ends of a message must compute the same count.

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "paceline/engine/collectives/algorithms/schedule.h"

namespace paceline {

inline Place input(std::size_t offset) { return {Space::kInput, offset}; }
inline Place output(std::size_t offset) { return {Space::kOutput, offset}; }
inline Place scratch(std::size_t offset) { return {Space::kScratch, offset}; }
inline Place partial(std::size_t offset) { return {Space::kPartial, offset}; }
inline Place operator+(Place place, std::size_t offset) {
  return {place.space, place.offset + offset};
}

// The depth of a binary tree over `number` leaves.
inline int levels_of(int number) {
  return std::bit_width(static_cast<unsigned>(std::max(number, 1)) - 1u);
}
inline int floor_power_of_two(int number) {
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(number)));
}

class ScheduleBuilder {
 public:
  explicit ScheduleBuilder(const ScheduleSpec& spec) : spec_(spec) {}

  // Calls body(peer) for every other rank, beginning with the next one, so that not all ranks talk
  // to rank 0 at once.
  template <class Body>
  void for_each_peer(Body body) const {
    for (int i = 1; i < spec_.world_size; ++i) body((spec_.rank + i) % spec_.world_size);
  }

  void send(int peer, Place from, Place to, std::size_t count, int owner = -1) {
    if (count == 0) return;
    need(from, count, owner);
    add({.kind = Step::Kind::kSend,
         .peer = peer,
         .owner = owner == spec_.rank ? -1 : owner,
         .from = from,
         .to = to,
         .count = count});
  }
  void receive(int peer, Place from, Place to, std::size_t count) {
    if (count == 0) return;
    need(to, count);
    add({.kind = Step::Kind::kReceive, .peer = peer, .from = from, .to = to, .count = count});
  }
  void reduce(const std::vector<Operand>& operands, Place to, std::size_t count) {
    if (count == 0) return;
    need(to, count);
    add({.kind = Step::Kind::kReduce,
         .to = to,
         .count = count,
         .first_operand = schedule_.operands.size(),
         .num_operands = operands.size()});
    for (Operand operand : operands) {
      if (operand.owner == spec_.rank) operand.owner = -1;
      schedule_.operands.push_back(operand);
    }
  }
  // In shared memory: reduces into all `targets`.
  void reduce_to(const std::vector<Operand>& operands, const std::vector<Target>& targets,
                 std::size_t count) {
    if (count == 0) return;
    reduce(operands, targets.front().place, count);
    add_targets(targets);
  }
  void copy_to(Place from, const std::vector<Target>& targets, std::size_t count) {
    if (count == 0) return;
    add({.kind = Step::Kind::kCopy, .from = from, .count = count});
    add_targets(targets);
  }
  // Adds a copy. A copy that continues the range of the previous one is merged with it.
  void copy(Place from, Place to, std::size_t count, int owner = -1) {
    if (count == 0) return;
    need(to, count);
    if (owner == spec_.rank) owner = -1;
    if (continues(from, to, owner)) {
      schedule_.steps.back().count += count;
      return;
    }
    add({.kind = Step::Kind::kCopy, .owner = owner, .from = from, .to = to, .count = count});
  }
  void meet() {
    if (!meets_) schedule_.first_meeting = schedule_.steps.size();
    meets_ = true;
    add({.kind = Step::Kind::kMeet});
  }
  // Marks the steps added so far as steps that may run ahead (Schedule::overlaps).
  void mark_ahead() {
    schedule_.overlaps = true;
    schedule_.num_ahead = schedule_.steps.size();
  }

  // A greeting is a message that consists only of a header. await() adds a kAwait step.
  void send_greeting(int peer) { add({.kind = Step::Kind::kSend, .peer = peer}); }
  void receive_greeting(int peer) { add({.kind = Step::Kind::kReceive, .peer = peer}); }
  void await(int peer) { add({.kind = Step::Kind::kAwait, .peer = peer}); }

  void append(const Schedule& schedule) {
    const std::size_t shift = schedule_.operands.size();
    if (schedule.overlaps) {
      schedule_.overlaps = true;
      schedule_.num_ahead = schedule_.steps.size() + schedule.num_ahead;
    }
    for (Step step : schedule.steps) {
      step.first_operand += shift;
      add(step);
    }
    schedule_.operands.insert(schedule_.operands.end(), schedule.operands.begin(),
                              schedule.operands.end());
    schedule_.scratch_count = std::max(schedule_.scratch_count, schedule.scratch_count);
    schedule_.partial_count = std::max(schedule_.partial_count, schedule.partial_count);
  }

  Schedule take() { return std::move(schedule_); }

 private:
  void add(const Step& step) { schedule_.steps.push_back(step); }
  void add_targets(const std::vector<Target>& targets) {
    schedule_.steps.back().first_target = schedule_.targets.size();
    schedule_.steps.back().num_targets = targets.size();
    for (Target target : targets) {
      if (target.owner == spec_.rank) target.owner = -1;
      need(target.place, schedule_.steps.back().count, target.owner);
      schedule_.targets.push_back(target);
    }
  }
  bool continues(const Place& from, const Place& to, int owner) const {
    if (schedule_.steps.empty() || schedule_.steps.size() == schedule_.num_ahead) return false;
    const Step& last = schedule_.steps.back();
    return last.kind == Step::Kind::kCopy && last.owner == owner && last.num_targets == 0 &&
           from == last.from + last.count && to == last.to + last.count;
  }
  void need(const Place& place, std::size_t count, int owner = -1) {
    if (owner >= 0 && owner != spec_.rank) return;
    auto& room = place.space == Space::kPartial ? schedule_.partial_count : schedule_.scratch_count;
    if (place.space == Space::kScratch || place.space == Space::kPartial) {
      room = std::max(room, place.offset + count);
    }
  }

  const ScheduleSpec spec_;
  Schedule schedule_;
  bool meets_ = false;
};

}  // namespace paceline
