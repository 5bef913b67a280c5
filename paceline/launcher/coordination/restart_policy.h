#pragma once

// Whether a job goes on after a failure: a pure function of what happened and when; the agent acts
// on it.
//
//   - At most max_restarts restarts within `window`; older ones no longer count.
//   - The same end, kCrashLoop times in a row and each time before any progress, is a crash loop:
//     one more attempt would end in the same way, whatever is left of the budget.
//   - An error of use (engine/core/error.h) before any progress: the next attempt would be the same
//     call.
//   - An end that the program has no part in (--chaos, a lost host) is none of these: neither part
//     of a crash loop nor a reason to pause.
//   - Ranks whose state was damaged (engine/core/error.h) are started again like others, unless a job
//     is to stop then.
//   - Progress ends a series, of whichever generation, also of one that ended because a node came
//     or left (note_progress).
//   - A generation that died young without progress is followed by a pause, from 100 ms on doubling
//     to 5 s, except the first time; a program that cannot start does not keep the machine busy.
//
// Thread safety: none. Time comes in as an argument, from a monotonic clock.

#include <chrono>
#include <deque>
#include <string>

#include "paceline/engine/core/awake_clock.h"
#include "paceline/launcher/messages/agent_messages.h"

namespace paceline::launcher {

struct RestartLimits {
  int max_restarts = 0;
  std::chrono::nanoseconds window = std::chrono::hours(1);  // zero: the whole job
  bool after_damage = true;
  bool operator==(const RestartLimits&) const = default;
};

// How a generation ended that had to end.
struct GenerationEnd {
  Failure failure;
  bool progressed = false;  // it made a step; where these are not counted: it lived for kLongLife
  std::chrono::nanoseconds lived{};
};

struct RestartDecision {
  bool restart = false;
  std::chrono::nanoseconds pause{};  // before it
  std::string reason;                // of a refusal, for people
};

class RestartPolicy {
 public:
  using Moment = AwakeClock::time_point;
  static constexpr int kCrashLoop = 3;
  static constexpr std::chrono::seconds kLongLife{10};

  explicit RestartPolicy(const RestartLimits& limits) : limits_(limits) {}

  RestartDecision after(const GenerationEnd& end, Moment now);
  // A generation made progress. Not needed for those that after() is told of.
  void note_progress();
  // Restarts so far, also those that no longer count.
  int num_restarts() const { return num_restarts_; }

 private:
  std::chrono::nanoseconds pause_after(const GenerationEnd& end);

  const RestartLimits limits_;
  std::deque<Moment> restarts_;  // those within the window, oldest first
  int num_restarts_ = 0;
  std::string last_cause_;
  int num_alike_ = 0;  // ends in a row with last_cause_ and without progress
  int num_young_ = 0;  // ends in a row that were young and without progress
};

}  // namespace paceline::launcher
