#pragma once

// What the communication of one axis of a mesh takes: closed forms over the costs of links, fast
// enough for a search over meshes of 100,000 ranks. The engine's own planner
// (engine/collectives/planning/planner.h) chooses among algorithms; these are the costs of the ones
// that it chooses for large buffers: sums in shared memory within a host, each host's bytes once
// over its link.
//
// Times of processors, which no overlap hides, are apart from times of the wire.
//
// Thread safety: pure functions.

#include "paceline/planning/forecast/machine.h"
#include "paceline/planning/forecast/way.h"

namespace paceline::planning {

struct LinkTime {
  double processor_s = 0;
  double wire_s = 0;

  double seconds() const { return processor_s + wire_s; }
};
LinkTime operator+(const LinkTime& a, const LinkTime& b);

// Every rank of the axis gets the sum of all their buffers.
LinkTime all_reduce(double bytes, const AxisPlace& place, const CostModel& links);
// ... its part of it.
LinkTime reduce_scatter(double bytes, const AxisPlace& place, const CostModel& links);
// Every rank gets all parts, of so many bytes together. `once_a_host`: into one copy that the
// host's ranks share.
LinkTime all_gather(double bytes, const AxisPlace& place, const CostModel& links, bool once_a_host);
// To a rank of the same host or another one, whose link so many messages share.
LinkTime message(double bytes, bool same_host, int sharing, const CostModel& links);

}  // namespace paceline::planning
