#pragma once

// Plans as tables for people.
//
// Thread safety: pure functions.

#include <cstddef>
#include <span>
#include <string>

#include "paceline/planning/forecast/best_ways.h"

namespace paceline::planning {

// What a way was seen to take, beside what was predicted.
struct MeasuredWay {
  Forecast forecast;
  double step_s = 0;      // 0: nothing was measured
  double host_bytes = 0;  // of all ranks of the host
  std::string problem;    // why nothing was
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
