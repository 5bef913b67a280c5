#pragma once

// What the ranks of a job do between two looks: cpu, memory, steps, operations, waiting. Everything
// is read from outside, from /proc, the ranks' gauges and their flight records; the ranks notice
// nothing.

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "paceline/engine/telemetry/flight_file.h"
#include "paceline/engine/telemetry/step_gauge.h"
#include "paceline/launcher/diagnosis/thread_census.h"

#include "apps/job_list.h"

namespace paceline::apps {

struct RankFigures {
  int rank = 0;
  pid_t pid = -1;
  std::string state;  // "running", "stopped", "gone"
  double cpus = 0;    // busy on average: 1.5 is one and a half
  std::uint64_t memory_bytes = 0;
  // The training stands after it, those before a restart included; nothing: the program counts
  // none.
  std::optional<std::uint64_t> step;
  std::optional<double> samples_per_second;
  std::optional<double> operations_per_second;
  std::optional<double> waiting_share;  // of the time, for others
  std::string where;                    // the last operation, "all_reduce #42"
  bool straggler = false;
};

class RankMeter {
 public:
  using Clock = std::chrono::steady_clock;

  // What happened since the last call; the first one has no rates.
  std::vector<RankFigures> look(const JobEntry& job);

 private:
  struct Before {
    Clock::time_point at;
    launcher::ThreadTimes threads;
    std::optional<StepReading> steps;
    std::uint64_t begun = 0;
  };
  RankFigures measure(const JobEntry& job, const JobRank& rank, const Flight* flight);

  std::map<int, Before> before_;
};

}  // namespace paceline::apps
