#pragma once

// Meters of a job's ranks between two looks: cpu, memory, steps, operations, waiting. Everything
// is read from outside, from /proc, the ranks' gauges and their flight records; the ranks notice
// nothing.

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "paceline/engine/telemetry/call_gauge_file.h"
#include "paceline/engine/telemetry/flight_file.h"
#include "paceline/engine/telemetry/step_log.h"
#include "paceline/launcher/diagnosis/thread_census.h"

#include "apps/jobs/job_list.h"

namespace paceline::apps {

struct RankFigures {
  int rank = 0;
  pid_t pid = -1;
  std::string state;  // "running", "stopped", "gone"
  double cpus = 0;    // busy on average: 1.5 is one and a half
  std::uint64_t memory_bytes = 0;
  // Steps that the training has finished, those before a restart included; empty: the program
  // counts none.
  std::optional<std::uint64_t> step;
  std::optional<double> samples_per_second;
  std::optional<double> operations_per_second;
  std::optional<double> waiting_share;  // of the time, spent waiting for others
  std::string where;                    // the last operation, "all_reduce #42"
  bool straggler = false;
};

class RankMeter {
 public:
  using Clock = std::chrono::steady_clock;

  // The figures since the last call; the first call has no rates.
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

// One method at one end of its calls.
struct MethodFigures {
  CallSide side = CallSide::kCaller;
  std::string method;
  std::optional<double> per_second;  // that ended
  std::optional<double> p50, p99;    // seconds, of those that ended; at a callee: in its handler
  std::uint64_t under_way = 0;
  std::uint64_t queued = 0;  // of those under way, at a callee
  std::uint64_t failed = 0;  // ever
};

struct WorkerFigures {
  int rank = 0;
  std::string worker;
  std::uint64_t references = 0;  // that it holds
  std::uint64_t objects = 0;     // here that others hold
  std::vector<MethodFigures> methods;
};

// The calls of a job's workers between two looks, by worker and method, from their call gauges
// (engine/telemetry/call_gauge.h). The workers notice nothing.
class CallMeter {
 public:
  // The ranks on this machine that have joined as workers. The first call has no rates.
  std::vector<WorkerFigures> look(const JobEntry& job);

 private:
  using Clock = std::chrono::steady_clock;
  struct Before {
    int pid = 0;
    Clock::time_point at;
    std::vector<CallFigures> methods;
  };
  std::map<int, Before> before_;  // by rank
};

// "12 us", "1.5 ms": three digits at most.
std::string time_text(double seconds);

}  // namespace paceline::apps
