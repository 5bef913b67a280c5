#pragma once

// The search over all ways to divide a job among the ranks of a machine, and tables of ways for
// people.
//
// The search takes every mesh of the right size whose parts stay within a host, every stage of
// sharding and every schedule that the program runs, and several numbers of micro-batches.
//
// Cost: a forecast for each way; for a pipeline a simulated step, a few milliseconds for the
// largest. A mesh of 100,000 ranks has a few hundred ways. Where the program can (kSearched), a
// better schedule is searched for a few of the fastest pipelines, if they are not large: about a
// tenth of a second each.
//
// Thread safety: pure functions.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "paceline/planning/forecast/step_forecast.h"

namespace paceline::planning {

struct Search {
  std::vector<Forecast> ways;  // ways that fit into memory first, then the fastest
  std::int64_t num_simulations = 0;
};

// Error(kInvalid) that says what to change when there is no way at all.
Search search_ways(const JobProfile& profile, const Machine& machine, std::int64_t global_batch);

// Why the first is the best, a sentence each: what divides the model would cost instead, what
// limits the step. Requires: a way.
std::vector<std::string> reasons_for(const Search& search);

// A way's measured time and memory beside its forecast.
struct MeasuredWay {
  Forecast forecast;
  double step_s = 0;      // 0: nothing was measured
  double host_bytes = 0;  // of all ranks of the host
  std::string problem;    // why nothing was measured
};

// The first `rows` ways, the best one marked: mesh, sharding, schedule, step and what it consists
// of, throughput, memory.
std::string way_table(const Search& search, const JobProfile& profile, std::size_t rows);

// One line for each way: what its memory consists of, for a rank and a host, and whether it fits.
std::string memory_table(std::span<const Forecast> ways, const Machine& machine);

// Predicted beside measured, with the errors' median and the worst.
std::string measured_table(std::span<const MeasuredWay> ways);

// "1.2 GB", "35 MB".
std::string memory_text(double bytes);

}  // namespace paceline::planning
