#pragma once

// Decides whether a job goes on after a failure: a pure function of the ends so far.
//
//   - At most max_restarts restarts within `window`; older ones no longer count.
//   - The same end, kCrashLoop times in a row and each time before any progress, is a crash loop:
//     one more attempt would end in the same way, whatever is left of the budget.
//   - An error of use (engine/core/error.h) before any progress ends the job, because the next
//     attempt would make the same call.
//   - A failure that the program has no part in (--chaos, a lost host) uses up a restart, but is
//     neither part of a crash loop nor a reason to pause.
//   - Ranks whose state was damaged (engine/core/error.h) are started again like others, unless
//     the user wants the job to stop then.
//   - Progress ends every series, whichever generation made it, also one that ended only because
//     a node came or left (note_progress).
//   - A generation that died young without progress is followed by a pause, except the first time:
//     100 ms, doubling up to 5 s. So a program that cannot start does not keep the machine busy.
//
// Thread safety: none. Time comes in as an argument, from a monotonic clock.

#include <chrono>
#include <string>
#include <utility>

#include "paceline/engine/core/awake_clock.h"
#include "paceline/launcher/messages/agent_messages.h"
#include "paceline/launcher/messages/job_terms.h"

namespace paceline::launcher {

// How a generation ended that failed.
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

  // Goes on with a budget of which some may have been used by `now`.
  explicit RestartPolicy(RestartBudget budget, Moment now = Moment())
      : budget_(std::move(budget)), as_of_(now) {}

  RestartDecision after(const GenerationEnd& end, Moment now);
  // Counts a restart that was decided elsewhere.
  void count_restart(Moment now);
  // A generation made progress. Not needed for one that after() learns of.
  void note_progress() { budget_.num_alike = budget_.num_young = 0; }
  RestartBudget budget(Moment now) const { return budget_.after(now - as_of_); }

 private:
  std::chrono::nanoseconds pause_after(const GenerationEnd& end);

  RestartBudget budget_;
  Moment as_of_;  // when its ages were right
};

// "2 restarts used up within 3600 s (--max-restarts 2)".
std::string used_up_text(const RestartBudget& budget);

}  // namespace paceline::launcher
