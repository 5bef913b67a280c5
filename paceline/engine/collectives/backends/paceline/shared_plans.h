#pragma once

// Chooses how ranks that share memory carry out a call, once for each form of call. The choice is a
// pure function of facts that all ranks agree on, so all of them choose alike; explain() prints it.

#include <cstddef>
#include <string>
#include <vector>

#include "paceline/engine/collectives/algorithms/schedule.h"
#include "paceline/engine/collectives/selection/planner.h"

namespace paceline {

struct SharedTerms {
  int world_size = 1;
  bool shares_cores = false;  // there are more ranks than cores, so they wait longer for each other
};

struct SharedRoute {
  // kTiny: always through the staging area. kSmall: in place if all buffers are symmetric, else
  // through the staging area in one piece, copied before the ranks meet. kLarge: in place, else
  // through the staging area in pieces.
  enum class Way { kTiny, kSmall, kLarge };
  Way way = Way::kTiny;
  bool is_one_shot = false;  // in a staged call, every rank reduces everything itself
};

SharedRoute choose_route(const SharedTerms& terms, const PlanRequest& request);
// Explains the choice in lines for people.
std::string explain_route(const SharedTerms& terms, const PlanRequest& request);

// The most elements of a call, or of each of its blocks, in a piece that fits into a staging area.
std::size_t staged_piece_count(Op op, Dtype dtype, int world_size);

// A cache of values. Each key maps to one place, which holds only the last key stored there, so a
// lookup is one comparison and costs a small call a few nanoseconds. A Key has operator== and
// place(), which is below kNumPlaces. Thread safety: none; one executor owns it.
template <class Key, class Value>
class MadeBefore {
 public:
  static constexpr std::size_t kNumPlaces = 256;

  // The value for `key`; calls `make` if the cache does not hold it. Valid until the next call.
  template <class Make>
  const Value& find(const Key& key, Make&& make) {
    Entry& entry = entries_[key.place()];
    if (!entry.is_used || !(entry.key == key)) [[unlikely]]
      entry = {true, key, make()};
    return entry.value;
  }

 private:
  struct Entry {
    bool is_used = false;
    Key key;
    Value value;
  };
  std::vector<Entry> entries_{kNumPlaces};
};

struct SharedPlan {
  SharedRoute route;
  Schedule staged;  // schedule of the whole call, if it is one piece
};

// A cache of plans: how calls of each form are carried out in shared memory.
class SharedPlans {
 public:
  // `terms` outlives this object.
  SharedPlans(const SharedTerms& terms, int rank) : terms_(terms), rank_(rank) {}

  // Valid until the next call.
  const SharedPlan& find(const Collective& call) {
    return plans_.find({call.op, call.dtype, call.root, call.count}, [&] { return make(call); });
  }

 private:
  struct Key {
    Op op = Op::kBarrier;
    Dtype dtype = Dtype::kUint8;
    int root = 0;
    std::size_t count = 0;

    bool operator==(const Key&) const = default;
    std::size_t place() const {
      const std::size_t form = static_cast<std::size_t>(root) << 16 |
                               static_cast<std::size_t>(op) << 8 | static_cast<std::size_t>(dtype);
      return (count * 0x9e3779b97f4a7c15u + form * 0xc2b2ae3d27d4eb4fu) >> 56;
    }
  };
  SharedPlan make(const Collective& call) const;

  const SharedTerms& terms_;
  const int rank_;
  MadeBefore<Key, SharedPlan> plans_;
};

// The key of a schedule. Requires: the operation has equal counts, and all keys belong to one rank
// of one group, because == does not compare ranks and world sizes.
struct ScheduleKey {
  using Build = Schedule (*)(const ScheduleSpec& spec);

  ScheduleSpec spec;
  Build build = nullptr;

  bool operator==(const ScheduleKey& other) const;
  std::size_t place() const;
};

// The schedules of staged pieces and of in-place calls.
class SharedSchedules {
 public:
  // Valid until the next call.
  const Schedule& find(const ScheduleSpec& spec, ScheduleKey::Build build) {
    return schedules_.find({spec, build}, [&] { return build(spec); });
  }

 private:
  MadeBefore<ScheduleKey, Schedule> schedules_;
};

}  // namespace paceline
