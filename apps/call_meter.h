#pragma once

// The calls of a job's workers between two looks, by worker and method, from their call gauges
// (engine/telemetry/call_gauge.h). The workers notice nothing.

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "paceline/engine/telemetry/call_gauge_file.h"

#include "apps/job_list.h"

namespace paceline::apps {

// One method at one end of its calls.
struct MethodFigures {
  CallSide side = CallSide::kCaller;
  std::string method;
  std::optional<double> per_second;  // that ended
  std::optional<double> p50, p99;    // seconds, of those that ended; of a callee: in its handler
  std::uint64_t under_way = 0;
  std::uint64_t queued = 0;  // of a callee: of those under way
  std::uint64_t failed = 0;  // ever
};

struct WorkerFigures {
  int rank = 0;
  std::string worker;
  std::uint64_t references = 0;  // that it holds
  std::uint64_t objects = 0;     // here that others hold
  std::vector<MethodFigures> methods;
};

class CallMeter {
 public:
  // Of the ranks on this machine that have joined as workers. The first look has no rates.
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
