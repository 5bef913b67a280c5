#pragma once

// Predicts how long a collective would take on a cluster. The planner's formula, which the engine
// uses to choose an algorithm, gives one prediction; the simulator, which runs every rank's
// schedule in virtual time, gives another.
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

// A cluster that is described in words, for example "hosts=64,ranks=8,link=25Gbit,latency=20us".
struct Cluster {
  int hosts = 1;
  int ranks = 1;  // ranks on each host
  std::optional<double> link_bytes_per_s, latency_s;
  bool operator==(const Cluster&) const = default;

  int world_size() const { return hosts * ranks; }
  // Returns `costs` with the network's values replaced by this cluster's, where these are given.
  CostModel costs(CostModel costs) const;
};

// Reads hosts= (required), ranks= (1 when not given), link= in bit/s with k, M, G or T, and
// latency= with us, ms, s, min, h or d. Throws SettingError (engine/core/option_text.h).
Cluster parse_cluster(std::string_view text);

// A text such as "64 hosts x 8 ranks, 25 Gbit/s, 20 µs; costs: ...".
std::string describe(const Cluster& cluster, const CostModel& costs);

// One call by one algorithm, for the simulator. The call is simulated as a whole if possible,
// otherwise in parts. These calls take too long to simulate as a whole: a direct reduce of
// thousands of ranks (because of the messages), a broadcast along a chain of thousands of ranks
// (because of the chunks), and an all_to_all among many ranks on few hosts (because its cost grows
// with the square of the number of ranks).
struct SimulatedCall {
  Op op = Op::kBarrier;
  Dtype dtype = Dtype::kFloat32;
  std::size_t count = 0;  // as in Collective; roots are rank 0
  Algorithm algorithm = Algorithm::kDirect;
  std::size_t chunk = 0;               // in elements, for algorithms that use chunks
  std::size_t most_steps = kMaxSteps;  // limit for one simulation
};

// Error(kUnsupported) if the call takes too long to simulate even in parts.
SimulationResult simulate_call(const SimulatedCall& call, const Planner& planner);

// The next three functions simulate a call in parts. A direct reduce consists of a reduce_scatter,
// in which every rank adds up its chunk, and a gather, in which the chunks are sent to the root. In
// reality the messages overlap a little more.
SimulationResult simulate_reduce_in_parts(const SimulatedCall& call, const Planner& planner);
// In a chain, each additional host (on one host: each additional rank) adds the same time. So the
// time and the number of messages of a long chain follow from those of two short chains, except for
// a few messages with which each rank begins. Requires: equal blocks of ranks (Hosts), and a chain
// of more than 16 hosts or, on one host, of more than 16 ranks.
SimulationResult simulate_chain_in_parts(const SimulatedCall& call, const Planner& planner);
// For algorithms in which every rank exchanges the same amount with every other rank, or along a
// ring, on hosts with many ranks. Time, messages and bytes are quadratic functions of the number of
// ranks per host. They are determined from simulations with a sixteenth, an eighth and a quarter of
// the ranks. Requires: several hosts, with equal blocks of at least 128 ranks.
SimulationResult simulate_hosts_in_parts(const SimulatedCall& call, const Planner& planner);

struct Forecast {
  Op op = Op::kBarrier;
  Dtype dtype = Dtype::kFloat32;
  int world_size = 1;
  std::size_t bytes = 0;  // as nccl-tests counts them (operation.h)
  Candidate candidate;
  bool is_chosen = false;
  std::optional<SimulationResult> simulated;
  std::string refusal;  // why the call was not simulated
  std::optional<double> measured_s;

  double planned_us() const { return candidate.seconds * 1e6; }
};

enum class Which { kChosen, kAll };

// Predictions for the algorithms that can handle buffers of `bytes`, with the chosen algorithm
// first. The simulator treats a call as a whole, but the engine cuts large reductions into pieces
// and handles the pieces one after the other.
std::vector<Forecast> forecast(const Planner& planner, Op op, Dtype dtype, std::size_t bytes,
                               Which which);

// The text for a terminal: a table for one operation.
std::string forecast_heading(const Forecast& first);
std::string forecast_rows(const std::vector<Forecast>& forecasts);
// All values as JSON, for programs.
std::string to_json(const std::vector<Forecast>& forecasts, const Planner& planner);

}  // namespace paceline::bench
