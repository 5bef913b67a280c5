#pragma once

// How long a collective would take on a cluster: by the planner's formula, by which the engine
// chooses, and by the simulator, which runs every rank's schedule in virtual time.
//
// Thread safety: pure functions.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "paceline/engine/collectives/selection/algorithm.h"
#include "paceline/engine/collectives/selection/cost_model.h"
#include "paceline/engine/collectives/selection/planner.h"
#include "paceline/engine/collectives/selection/simulator.h"

#include "apps/bench/operation.h"

namespace paceline::bench {

// A cluster that is not at hand, as people type it: "hosts=64,ranks=8,link=25Gbit,latency=20us".
struct Cluster {
  int hosts = 1;
  int ranks = 1;  // on each host
  std::optional<double> link_bytes_per_s, latency_s;
  bool operator==(const Cluster&) const = default;

  int world_size() const { return hosts * ranks; }
  // `costs` with the network given here.
  CostModel costs(CostModel costs) const;
};

// hosts and ranks (1 when not given), link in bit/s with k, M, G or T, latency with us, ms or s.
// Throws SettingError (engine/core/option_text.h).
Cluster parse_cluster(std::string_view text);

// "64 hosts x 8 ranks, 25 Gbit/s, 20 µs".
std::string describe(const Cluster& cluster, const CostModel& costs);

// One call by one algorithm in the simulator: at once if the simulator can, otherwise in parts. Too
// long at once are a direct reduce of thousands of ranks (messages), a broadcast along a chain of
// them (chunks), and an all_to_all among many ranks of few hosts (the square of the ranks).
struct SimulatedCall {
  Op op = Op::kBarrier;
  Dtype dtype = Dtype::kFloat32;
  std::size_t count = 0;  // as in Collective; root is rank 0
  Algorithm algorithm = Algorithm::kDirect;
  std::size_t chunk = 0;                // elements, of the algorithms that cut
  std::size_t most_steps = kMostSteps;  // at once
};

// Error(kUnsupported) when it is too long to simulate in parts too.
SimulationResult simulate_call(const SimulatedCall& call, const Planner& planner);

// The parts. A direct reduce: every rank's chunk is added up, which is a reduce_scatter, then all
// go to the root, as in a gather; messages overlap a little more in truth.
SimulationResult simulate_reduce_in_parts(const SimulatedCall& call, const Planner& planner);
// A chain: each further host (each rank, on one host) takes the same time, so that two short chains
// tell what a long one takes, and how many messages, except for some greetings of each rank.
// Requires: equal blocks of ranks (Hosts), more than 16 of them.
SimulationResult simulate_chain_in_parts(const SimulatedCall& call, const Planner& planner);
// Algorithms by which every rank does as much with every other one, or with every one in a ring, on
// hosts of many ranks: time, messages and bytes grow as a quadratic function of a host's ranks,
// which a sixteenth, an eighth and a quarter of them tell. Requires: equal blocks of at least 128
// ranks on several hosts.
SimulationResult simulate_hosts_in_parts(const SimulatedCall& call, const Planner& planner);

struct Forecast {
  Op op = Op::kBarrier;
  Dtype dtype = Dtype::kFloat32;
  int world_size = 1;
  std::size_t bytes = 0;  // as nccl-tests count (operation.h)
  Candidate candidate;
  bool is_chosen = false;
  std::optional<SimulationResult> simulated;
  std::string refusal;  // why it was not simulated
  std::optional<double> measured_s;

  double planned_us() const { return candidate.seconds * 1e6; }
};

enum class Which { kChosen, kAll };

// The algorithms for buffers of `bytes`, the chosen one first. Simulated over the whole call at
// once; the engine cuts large sums into pieces one after the other.
std::vector<Forecast> forecast(const Planner& planner, Op op, Dtype dtype, std::size_t bytes,
                               Which which);

// For a terminal; a table has one operation.
std::string forecast_heading(const Forecast& first);
std::string forecast_rows(const std::vector<Forecast>& forecasts);
// Everything, for programs.
std::string to_json(const std::vector<Forecast>& forecasts, const Planner& planner);

}  // namespace paceline::bench
