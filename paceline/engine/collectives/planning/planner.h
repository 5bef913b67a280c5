#pragma once

// Chooses the algorithm of a collective by predicting what each would cost.
//
// The prediction adds up, for the busiest rank or host: rounds (latencies one after the other),
// messages, bytes through a host's network interface and through sockets inside a host, bytes read
// by reduces, bytes copied, and meetings in shared memory; each times its cost (cost_model.h). It
// is a pure function of what all ranks agree on, in arithmetic that is the same on every machine
// (additions, multiplications and divisions of doubles, never fused), so all ranks choose alike.
// Compared with the simulator it ignores queueing; tests/engine/collectives/planner_test.cpp holds
// it to a factor of 4.

#include <string>
#include <vector>

#include "paceline/engine/collectives/planning/effort.h"
#include "paceline/engine/collectives/planning/planning_options.h"

namespace paceline {

struct PlanRequest {
  Op op = Op::kBarrier;
  Dtype dtype = Dtype::kFloat32;
  std::size_t count = 0;  // as in Collective
};

struct Candidate {
  Algorithm algorithm = Algorithm::kDirect;
  std::size_t chunk = 0;  // elements, for ScheduleSpec
  Effort work;
  double seconds = 0;
};

class Planner {
 public:
  // `shares_memory`: the ranks of each host do, so that there is a hierarchy.
  Planner(Hosts hosts, const PlanningOptions& options, bool shares_memory = false);

  // All that are possible, the chosen one first, then by time.
  std::vector<Candidate> candidates(const PlanRequest& request) const;
  Candidate choose(const PlanRequest& request) const { return candidates(request).front(); }
  // Why: a line for each candidate, with its work and time.
  std::string explain(const PlanRequest& request) const;

  const Hosts& hosts() const { return hosts_; }
  const CostModel& costs() const { return costs_; }

 private:
  double seconds(const Effort& work) const;
  CallSizes sizes_of(const PlanRequest& request) const;
  Candidate weigh(Algorithm algorithm, const PlanRequest& request) const;

  Hosts hosts_;
  PlanningOptions options_;
  CostModel costs_;
  bool shares_memory_;
  int world_;
  double most_per_host_ = 1;  // ranks
  bool is_in_blocks_ = true;  // the ranks of each host follow one another
  double partials_ = 1;       // subtrees of the host that has most
};

}  // namespace paceline
