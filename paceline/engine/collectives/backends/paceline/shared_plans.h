#pragma once

// Which way ranks that share memory carry out a call. The executor obeys it, explain() prints it.
// Pure functions of what all ranks agree on, so that all choose alike.

#include <cstddef>
#include <string>
#include <vector>

#include "paceline/engine/collectives/algorithms/schedule.h"
#include "paceline/engine/collectives/selection/planner.h"

namespace paceline {

struct SharedTerms {
  int world_size = 1;
  bool shares_cores = false;  // more ranks than cores: they wait longer for each other
};

struct SharedRoute {
  // In the order of size: staged without a look at where buffers lie; staged or in place, copied
  // before the ranks meet; in place, or staged piece by piece.
  enum class Way { kTiny, kSmall, kLarge };
  Way way = Way::kTiny;
  bool is_one_shot = false;  // when staged: every rank reduces everything itself
};

SharedRoute choose_route(const SharedTerms& terms, const PlanRequest& request);
// Lines for people.
std::string explain_route(const SharedTerms& terms, const PlanRequest& request);

// The most elements of a call, or of each of its blocks, that a piece of a staging area has room
// for.
std::size_t staged_piece_count(Op op, Dtype dtype, int world_size);

// How the calls of one form are carried out in shared memory: chosen once, then looked up.
//
// Thread safety: none; one executor owns it.

struct SharedPlan {
  SharedRoute route;
  Schedule staged;  // of the whole call, where it is one piece
};

class SharedPlans {
 public:
  // `terms` outlives this object.
  SharedPlans(const SharedTerms& terms, int rank) : terms_(terms), rank_(rank) {}

  // Valid until the next call.
  const SharedPlan& find(const Collective& call) {
    Entry& entry = entries_[place_of(call)];
    const bool is_known = entry.is_used && entry.op == call.op && entry.dtype == call.dtype &&
                          entry.root == call.root && entry.count == call.count;
    if (!is_known) [[unlikely]]
      entry = {true, call.op, call.dtype, call.root, call.count, make(call)};
    return entry.plan;
  }

 private:
  struct Entry {
    bool is_used = false;
    Op op = Op::kBarrier;
    Dtype dtype = Dtype::kUint8;
    int root = 0;
    std::size_t count = 0;
    SharedPlan plan;
  };
  static constexpr std::size_t kNumEntries = 256;

  static std::size_t place_of(const Collective& call) {
    const std::size_t form = static_cast<std::size_t>(call.root) << 16 |
                             static_cast<std::size_t>(call.op) << 8 |
                             static_cast<std::size_t>(call.dtype);
    return (call.count * 0x9e3779b97f4a7c15u + form * 0xc2b2ae3d27d4eb4fu) >> 56;
  }
  SharedPlan make(const Collective& call) const;

  const SharedTerms& terms_;
  const int rank_;
  std::vector<Entry> entries_{kNumEntries};  // each form has one place
};

// The schedules of this rank that were built before. Thread safety: none; one executor owns it.

class SharedSchedules {
 public:
  using Build = Schedule (*)(const ScheduleSpec& spec);

  // Valid until the next call. Requires: equal counts; one group, and so one rank and one world
  // size.
  const Schedule& find(const ScheduleSpec& spec, Build build);

 private:
  static constexpr std::size_t kNumEntries = 256;
  struct Entry {
    ScheduleSpec spec;
    Build build = nullptr;
    Schedule schedule;
  };
  std::vector<Entry> entries_{kNumEntries};  // each spec has one place
};

}  // namespace paceline
