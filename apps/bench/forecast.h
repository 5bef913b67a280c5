#pragma once

// How long a collective would take on a cluster: by the planner's formula, which the engine chooses
// by, and by the simulator, which runs every rank's schedule in virtual time.

#include <optional>
#include <string>
#include <vector>

#include "paceline/engine/collectives/planning/planner.h"
#include "paceline/engine/collectives/simulation/simulator.h"

#include "apps/bench/operation.h"

namespace paceline::bench {

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
