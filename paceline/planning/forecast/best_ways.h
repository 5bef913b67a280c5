#pragma once

// The search over all ways to divide a job among the ranks of a machine, and tables of the results
// for people.
//
// The search tries every mesh of all ranks whose tensor-parallel groups stay within a host,
// with every shard stage and schedule that the program supports (except interleaved-1f1b), and with
// several numbers of micro-batches.
//
// Cost: one forecast for each way. For a pipeline it includes the simulation of a step, which takes
// at most a few milliseconds. For 100,000 ranks there are a few hundred ways. If the program
// supports the schedule kSearched, the search also looks for better schedules for a few of the
// fastest pipelines that are not too large, which takes about 0.1 s for each of them.
//
// Thread safety: pure functions.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "paceline/planning/forecast/step_forecast.h"

namespace paceline::planning {

// The result of search_ways().
struct Search {
  std::vector<Forecast> ways;  // the best first; ways that do not fit into memory last
  std::int64_t num_simulations = 0;
};

// Throws the errors of Forecaster(), and Error(kInvalid) that says what to change if no way is
// possible.
Search search_ways(const JobProfile& profile, const Machine& machine, std::int64_t global_batch);

// The reasons why the first way is the best, one sentence each: the parts of the step's time; a
// comparison with the best way of every other kind (replicas only, tensor parallelism, a pipeline);
// the cost of failures and of stragglers. Requires: search.ways is not empty.
std::vector<std::string> reasons_for(const Search& search);

// A way's forecast with its measured time and memory.
struct MeasuredWay {
  Forecast forecast;
  double step_s = 0;      // 0: nothing was measured
  double host_bytes = 0;  // memory of all ranks of the host
  std::string problem;    // why nothing was measured
};

// The first `rows` ways, with the best one marked: mesh, sharding, schedule, step and its parts,
// throughput, memory.
std::string way_table(const Search& search, const JobProfile& profile, std::size_t rows);

// One line for each way: the parts of its memory, for a rank and for a host, and whether it fits.
std::string memory_table(std::span<const Forecast> ways, const Machine& machine);

// Compares predictions with measurements, and shows the median and the largest error.
std::string measured_table(std::span<const MeasuredWay> ways);

// A number of bytes as text, such as "1.2 GB" or "35 MB".
std::string memory_text(double bytes);

}  // namespace paceline::planning
