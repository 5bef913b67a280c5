#pragma once

// For which call a worker has been waiting, and what the called worker does with it, as the call
// gauges of both ends show (engine/telemetry/call_gauge_file.h). Pure functions.

#include <optional>
#include <string>
#include <vector>

#include "paceline/engine/collectives/flight/explain.h"
#include "paceline/engine/telemetry/call_gauge_file.h"

namespace paceline::launcher {

enum class CalleeState {
  kRunning,   // the handler runs
  kQueued,    // the call waits for a handler, or for its object
  kNotTaken,  // the callee lives and has not taken the call up
  kNotSent,   // the caller has no connection
  kStopped,   // the callee's process is stopped (SIGSTOP)
  kGone,      // it has ended
  kUnknown,   // it has left no record in this folder
};
// "running", "queued", "not taken", "not sent", "stopped", "gone", "unknown".
const char* name_of(CalleeState state);

struct CallWait {
  std::string caller, callee, method;
  int caller_rank = 0;
  std::optional<int> callee_rank;
  double seconds = 0;  // since the call was made
  CalleeState state = CalleeState::kUnknown;
  double state_seconds = 0;  // for how long it has been kRunning or kQueued
  // "trainer0 (rank 0) has been waiting for 12.3 s for ask of observer1 (rank 3): its handler has
  // been running there for 12.3 s".
  std::string sentence;
};

// The calls that have been open for long, the longest first.
std::vector<CallWait> call_waits(const std::vector<CallReading>& readings);

// The sentence of the wait that explains the others, or those of `rank`: follows callees that wait
// in turn; a circle is described as one. "" without waits.
std::string explain_waits(const std::vector<CallWait>& waits, std::optional<int> rank = {});

// Adds calls to an explanation by operations: the call for which a blamed rank waits; or, where
// operations explain nothing, the call that explains the others.
Explanation with_calls(Explanation explanation, const std::vector<CallWait>& waits);

}  // namespace paceline::launcher
