#pragma once

// Finds out for which call a worker has been waiting, and what the called worker does with it, from
// the call gauges of both processes (engine/telemetry/call_gauge_file.h). Pure functions.

#include <optional>
#include <string>
#include <vector>

#include "paceline/engine/collectives/flight/explain.h"
#include "paceline/engine/telemetry/call_gauge_file.h"

namespace paceline::launcher {

enum class CalleeState {
  kRunning,   // the handler runs
  kQueued,    // the call waits for a handler, or for its object
  kNotTaken,  // the call is not among the callee's open calls
  kNotSent,   // the caller has no connection
  kStopped,   // the callee's process is stopped (SIGSTOP)
  kGone,      // the callee's process has ended, but the caller's has not
  kUnknown,   // the callee is not among the readings
};
// The name of a state: "running", "queued", "not taken", "not sent", "stopped", "gone", "unknown".
const char* name_of(CalleeState state);

struct CallWait {
  std::string caller, callee, method;
  int caller_rank = 0;
  std::optional<int> callee_rank;
  double seconds = 0;  // since the call was made
  CalleeState state = CalleeState::kUnknown;
  double state_seconds = 0;  // how long the call has been running or queued at the callee
  // "trainer0 (rank 0) has been waiting for 12.3 s for ask of observer1 (rank 3): its handler has
  // been running there for 12.3 s".
  std::string sentence;
};

// The waits of callers for open calls, the longest first. A gauge lists a call only after the call
// has been open for 0.5 s (CallGauge::kLong).
std::vector<CallWait> call_waits(const std::vector<CallReading>& readings);

// Explains the longest wait or, with `rank`, the longest wait of that rank: while the called worker
// itself waits for a call, continues with that call. Returns the sentence of the last wait and the
// number of others, or a description of the cycle if workers wait for each other; "" if none wait.
std::string explain_waits(const std::vector<CallWait>& waits, std::optional<int> rank = {});

// Adds the result of explain_waits() to an explanation that was made from operations: the result
// for a blamed rank or, if the operations explain nothing, the result for all ranks.
Explanation with_calls(Explanation explanation, const std::vector<CallWait>& waits);

}  // namespace paceline::launcher
