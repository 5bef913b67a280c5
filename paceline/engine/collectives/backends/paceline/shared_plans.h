#pragma once

// How the calls of one form are carried out in shared memory: chosen once, then looked up.
//
// Thread safety: none; one executor owns it.

#include <cstddef>
#include <vector>

#include "paceline/engine/collectives/algorithms/schedule.h"
#include "paceline/engine/collectives/backends/paceline/shared_route.h"

namespace paceline {

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

}  // namespace paceline
