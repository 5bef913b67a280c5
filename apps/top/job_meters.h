#pragma once

// Measures a job's ranks between two calls of look(): cpu, memory, steps, operations, waiting.
// Everything is read from outside, from /proc, the ranks' gauges and their flight records, so the
// ranks are not disturbed.

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "paceline/engine/telemetry/call_gauge_file.h"
#include "paceline/engine/telemetry/flight_file.h"
#include "paceline/engine/telemetry/step_gauge.h"
#include "paceline/launcher/diagnosis/thread_census.h"

#include "apps/jobs/job_list.h"

namespace paceline::apps {

struct RankFigures {
  int rank = 0;
  pid_t pid = -1;
  std::string state;  // "running", "stopped", "gone"
  double cpus = 0;    // busy cpus on average: 1.5 is one and a half
  std::uint64_t memory_bytes = 0;
  // The steps that the training run has finished, including those before a restart; nullopt: the
  // program does not count steps.
  std::optional<std::uint64_t> step;
  std::optional<double> samples_per_second;
  std::optional<double> operations_per_second;
  std::optional<double> waiting_share;  // share of the time spent in communication
  std::string where;                    // the last operation: "in all_reduce #42", "after ..."
  bool straggler = false;
};

class RankMeter {
 public:
  using Clock = std::chrono::steady_clock;

  // The figures for the time since the last call; the first call returns no rates.
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

// The figures of one method, at the caller or at the callee.
struct MethodFigures {
  CallSide side = CallSide::kCaller;
  std::string method;
  std::optional<double> per_second;  // calls that ended, per second
  std::optional<double> p50, p99;    // seconds of calls that ended; at a callee: in its handler
  std::uint64_t under_way = 0;
  std::uint64_t queued = 0;  // calls under way that wait in a queue, at a callee
  std::uint64_t failed = 0;  // since the start
};

struct WorkerFigures {
  int rank = 0;
  std::string worker;
  std::uint64_t references = 0;  // references to remote objects that the worker holds
  std::uint64_t objects = 0;     // its own objects to which other workers hold references
  std::vector<MethodFigures> methods;
};

// Measures the calls of a job's workers between two calls of look(), by worker and method, from
// their call gauges (engine/telemetry/call_gauge.h). The workers are not disturbed.
class CallMeter {
 public:
  // The figures of the ranks on this machine that have joined as workers. The first call returns no
  // rates.
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

// A duration as text with at most three digits: "12 us", "1.5 ms".
std::string time_text(double seconds);

}  // namespace paceline::apps
