#pragma once

// The parts of a step as formulas: communication of one axis of a mesh, the exchange of gradients
// under the backward pass, pipelines on shared cores, failures and stragglers.
//
// Communication is closed forms over the costs of links, fast enough for a search over meshes of
// 100,000 ranks. The engine's own planner
// (engine/collectives/selection/planner.h) chooses among algorithms; these are the costs of the
// ones that it chooses for large buffers: sums in shared memory within a host, each host's bytes
// once over its link.
//
// CPU time, which no overlap hides, is kept apart from time on the wire.
//
// Thread safety: pure functions.

#include <functional>
#include <vector>

#include "paceline/planning/forecast/machine.h"
#include "paceline/planning/forecast/way.h"
#include "paceline/planning/schedules/simulate.h"

namespace paceline::planning {

struct LinkTime {
  double processor_s = 0;
  double wire_s = 0;

  double seconds() const { return processor_s + wire_s; }
};
LinkTime operator+(const LinkTime& a, const LinkTime& b);

// Every rank of the axis gets the sum of all their buffers.
LinkTime all_reduce(double bytes, const AxisPlace& place, const CostModel& links);
// Every rank gets its part of that sum.
LinkTime reduce_scatter(double bytes, const AxisPlace& place, const CostModel& links);
// Every rank gets all parts, of so many bytes together. `once_a_host`: into one copy that the
// host's ranks share.
LinkTime all_gather(double bytes, const AxisPlace& place, const CostModel& links, bool once_a_host);
// A message to a rank of the same host, or of another one whose link so many messages share.
LinkTime message(double bytes, bool same_host, int sharing, const CostModel& links);

// How much of the exchange of gradients the backward pass hides. Gradients come from the last layer
// to the first; a bucket leaves when it is full and the one before it has gone.
struct GradientsOfLayer {
  double backward_s = 0;
  double bytes = 0;
};

struct ExposedExchange {
  double seconds = 0;  // from the end of the backward pass to that of the exchange
  double whole_s = 0;  // of all buckets, hidden or not
  int num_buckets = 0;
};

// `layers` in the order of the forward pass; `seconds_of`: what a bucket of so many bytes takes.
// Requires: bucket_bytes > 0.
ExposedExchange exposed_exchange(const std::vector<GradientsOfLayer>& layers, double bucket_bytes,
                                 const std::function<double(double bytes)>& seconds_of);

// A pipeline whose ranks share cores: how long a plan takes when more ranks of a host want to
// compute than it has cores. The ranks that compute then share them evenly, as the kernel's
// scheduler sees to; a rank that waits takes none. Otherwise the model is simulate()'s.
//
// Returns the seconds of a step. `host_of_rank`: of the plan's ranks; `cores`: of each host,
// counted in ranks that compute at full speed. Requires: validate(plan), a cost for each stage,
// cores > 0.
double seconds_on_shared_cores(const pipeline::Plan& plan, const pipeline::Costs& costs,
                               const std::vector<int>& host_of_rank, double cores);

// What failures and slow ranks take from a long run.
//
// Failures come at random, with the mean time M between two of the whole job. A run saves every
// `interval`, which costs `checkpoint`, and after a failure `restart` passes before it goes on from
// the last checkpoint. The expected time of a unit of work is that of J. T. Daly, "A higher order
// estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer
// Systems 22 (2006), equation 13; the best interval is his equation 37, which begins with
// sqrt(2 checkpoint M), J. W. Young, "A first order approximation to the optimum checkpoint
// interval", Communications of the ACM 17 (1974).
struct FailureCosts {
  double mtbf_s = 0;  // of the job; 0: there are no failures
  double checkpoint_s = 0;
  double restart_s = 0;
};

// Seconds of work between checkpoints. Requires: mtbf_s > 0, checkpoint_s > 0.
double best_interval(const FailureCosts& costs);

// The share of time, 0 to 1, in which the run makes progress that it keeps. Without failures what
// checkpoints leave.
double goodput(const FailureCosts& costs, double interval_s);

// By how many standard deviations the slowest of so many ranks is above the mean: the expected
// largest of n normal numbers, by G. Blom's approximation (1958). 0 for one rank.
double slowest_of(int ranks);

}  // namespace paceline::planning
