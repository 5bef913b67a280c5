#pragma once

// Formulas for the parts of a step: communication along one axis of a mesh, the exchange of
// gradients during the backward pass, pipelines on shared cores, failures and stragglers.
//
// Communication is predicted by closed-form formulas of the link costs, which are fast enough for a
// search over meshes of 100,000 ranks. Unlike the engine's planner
// (engine/collectives/selection/planner.h), they do not compare algorithms. They describe the
// algorithms that the planner chooses for large buffers: sums in shared memory within a host, and
// each host's bytes once over its link.
//
// CPU time, which cannot be overlapped with computing, is kept apart from time on the wire.
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

// The time until every rank of a group of the axis has the sum of the group's buffers.
LinkTime all_reduce(double bytes, const AxisPlace& place, const CostModel& links);
// The time until every rank of a group has its part of the sum of the group's buffers.
LinkTime reduce_scatter(double bytes, const AxisPlace& place, const CostModel& links);
// The time until every rank of a group has all parts, `bytes` bytes together. With `once_per_host`
// all ranks of a host share one copy.
LinkTime all_gather(double bytes, const AxisPlace& place, const CostModel& links,
                    bool once_per_host);
// The time of a message to a rank of the same host, or of another host over a link that `sharing`
// messages share.
LinkTime message(double bytes, bool same_host, int sharing, const CostModel& links);

// A layer's part in the exchange of gradients during the backward pass. Gradients become ready from
// the last layer to the first; a bucket is sent when it is full and the previous one has been sent.
struct GradientsOfLayer {
  double backward_s = 0;
  double bytes = 0;
};

struct ExposedExchange {
  double seconds = 0;  // from the end of the backward pass to the end of the exchange
  double whole_s = 0;  // all buckets, hidden or not
  int num_buckets = 0;
};

// `layers` is in the order of the forward pass; `seconds_of` returns the seconds for a bucket of
// `bytes` bytes. Requires: bucket_bytes > 0.
ExposedExchange exposed_exchange(const std::vector<GradientsOfLayer>& layers, double bucket_bytes,
                                 const std::function<double(double bytes)>& seconds_of);

// The time of a pipeline's step on hosts that may have fewer cores than ranks. While more ranks of
// a host compute than the host has cores, they share the cores evenly, as under the kernel's
// scheduler; a waiting rank uses none. In all other respects the model is that of simulate().
//
// Returns the seconds of a step. `host_of_rank`: the host of each rank of the plan; `cores`: the
// number of ranks of a host that can compute at full speed. Requires: a plan that validate()
// accepts, a cost for each stage, cores > 0.
double seconds_on_shared_cores(const PipelineSchedule& plan, const pipeline::Costs& costs,
                               const std::vector<int>& host_of_rank, double cores);

// The time that a long run loses to failures and slow ranks.
//
// Failures occur at random, with a mean time M between two failures of the whole job. A run saves a
// checkpoint every `interval`, which costs `checkpoint`; after a failure it takes `restart` to
// continue from the last checkpoint. The expected time of a unit of work is that of J. T. Daly, "A
// higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation
// Computer Systems 22 (2006), equation 13; the best interval is Daly's equation 37. Its first term
// is sqrt(2 checkpoint M), the result of J. W. Young, "A first order approximation to the optimum
// checkpoint interval", Communications of the ACM 17 (1974).
struct FailureCosts {
  double mtbf_s = 0;  // of the whole job; 0: no failures
  double checkpoint_s = 0;
  double restart_s = 0;
};

// The best number of seconds of work between checkpoints. Requires: mtbf_s > 0, checkpoint_s > 0.
double best_interval(const FailureCosts& costs);

// The share of time, 0 to 1, in which the run makes progress that it keeps. Without failures, only
// checkpoints reduce it.
double goodput(const FailureCosts& costs, double interval_s);

// How many standard deviations the slowest of `ranks` ranks lies above the mean: the expected
// maximum of n normal variables, by G. Blom's approximation (1958). 0 for one rank.
double deviations_of_slowest(int ranks);

}  // namespace paceline::planning
