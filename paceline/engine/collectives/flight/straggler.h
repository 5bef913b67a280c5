#pragma once

// Which rank keeps the others waiting: the rank that comes last, by how much, over all operations
// that every rank still has in its ring.

#include <cstddef>
#include <optional>

#include "paceline/engine/collectives/flight/positions.h"

namespace paceline::flight {

struct Straggler {
  int rank = 0;
  std::size_t times_last = 0;
  std::size_t num_operations = 0;
  double waited_seconds = 0;  // by the second to last, added up
  double span_seconds = 0;    // from the first operation to the last
};

// A rank that causes at least half of all waiting and a tenth of the time; empty when there is none
// or there are fewer than 20 operations to judge by. Clocks: the monotonic one when all ranks are
// on one machine, otherwise the wall clock, whose error between machines counts in full.
std::optional<Straggler> find_straggler(const GroupPositions& group);

}  // namespace paceline::flight
