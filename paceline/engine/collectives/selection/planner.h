#pragma once

// Chooses a collective's algorithm by predicted time, and explains the choice.

#include <optional>
#include <string>
#include <vector>

#include "paceline/engine/collectives/group/group_options.h"
#include "paceline/engine/collectives/selection/algorithm.h"
#include "paceline/engine/collectives/selection/cost_model.h"

namespace paceline {

struct PlanRequest {
  Op op = Op::kBarrier;
  Dtype dtype = Dtype::kFloat32;
  std::size_t count = 0;  // as in Collective
};

struct Candidate {
  Algorithm algorithm = Algorithm::kDirect;
  std::size_t chunk = 0;  // elements of a chunk, for ScheduleSpec
  Effort work;
  double seconds = 0;
};

// Chooses the algorithm of a collective by predicting the cost of each.
//
// The prediction adds up, for the busiest rank or host: rounds (latencies one after the other),
// messages, bytes through a host's network interface and through sockets inside a host, bytes read
// by reduces, bytes copied, and meetings in shared memory; each is multiplied by its cost
// (cost_model.h). It is a pure function of values that all ranks agree on, in arithmetic that is
// the same on every machine (additions, multiplications and divisions of doubles, never fused), so
// all ranks choose alike. Unlike the simulator, it ignores queueing; the predictions of both differ
// by at most a factor of 4 (tests/engine/collectives/planner_test.cpp checks this).
class Planner {
 public:
  // `shares_memory`: the ranks of each host share memory, so the hierarchy is possible.
  Planner(Hosts hosts, const PlanningOptions& options, bool shares_memory = false);

  // All possible algorithms, the chosen one first, the others by time.
  std::vector<Candidate> candidates(const PlanRequest& request) const;
  Candidate choose(const PlanRequest& request) const { return candidates(request).front(); }
  // Explains the choice: a line for each candidate, with its work and time.
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
  double most_per_host_ = 1;  // largest number of ranks on a host
  bool is_in_blocks_ = true;  // the ranks of each host are consecutive
  double partials_ = 1;       // largest number of subtrees on a host
};

// Describes a call: "all_reduce of 262144 x float32 (1 MiB)", "all_to_all of 1024 x float32 (4 KiB
// a block)".
std::string describe(const PlanRequest& request);

// Describes the work of a plan: "2 latencies, 6 messages, 1.5 MiB through sockets".
std::string describe(const Effort& work);

}  // namespace paceline
