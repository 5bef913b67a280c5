#pragma once

// Decides whether a job is restarted after a failure. The decision depends only on the user's
// options, and on how and when the generations so far ended.
//
//   - A job restarts at most max_restarts times within `window`, or in all if `window` is 0.
//   - kCrashLoop identical failures in a row, each before any progress, are a crash loop: one more
//     attempt would fail in the same way, so the job ends even if restarts are left.
//   - A usage error (engine/core/error.h) before any progress ends the job, because the next
//     attempt would make the same call.
//   - A failure that the program did not cause (--chaos, a lost host) uses up a restart, but is
//     neither part of a crash loop nor a reason to pause.
//   - If the state of a rank was damaged (engine/core/error.h), the job restarts as after any other
//     failure, unless the user chose --on-damage stop.
//   - If a generation makes progress, the counts of identical and of early failures start again
//     from 0, even if the generation ended only because a node joined or left (note_progress).
//   - If several generations in a row fail within 1 s without progress, each after the first is
//     followed by a pause: 100 ms, doubling up to 5 s. So a program that cannot start does not keep
//     the machine busy.
//
// Thread safety: none. Callers pass the time, which they read from AwakeClock.

#include <chrono>
#include <string>
#include <utility>

#include "paceline/engine/core/awake_clock.h"
#include "paceline/launcher/messages/agent_messages.h"
#include "paceline/launcher/messages/job_terms.h"

namespace paceline::launcher {

// How a failed generation ended.
struct GenerationEnd {
  Failure failure;
  bool progressed = false;  // it made a step or, if steps are not counted, lived for kLongLife
  std::chrono::nanoseconds lived{};
};

struct RestartDecision {
  bool restart = false;
  std::chrono::nanoseconds pause{};  // before the restart
  std::string reason;                // why the job ends, for users; "" if max_restarts is 0
};

class RestartPolicy {
 public:
  using Moment = AwakeClock::time_point;
  static constexpr int kCrashLoop = 3;
  static constexpr std::chrono::seconds kLongLife{10};

  // Continues with a budget that may have been partly used up before `now`.
  explicit RestartPolicy(RestartBudget budget, Moment now = Moment())
      : budget_(std::move(budget)), as_of_(now) {}

  RestartDecision after(const GenerationEnd& end, Moment now);
  // Counts a restart that this object did not decide.
  void count_restart(Moment now);
  // Call when a generation made progress and after() is not called for its end.
  void note_progress() { budget_.num_alike = budget_.num_young = 0; }
  RestartBudget budget(Moment now) const { return budget_.after(now - as_of_); }

 private:
  std::chrono::nanoseconds pause_after(const GenerationEnd& end);

  RestartBudget budget_;
  Moment as_of_;  // the moment to which the ages in budget_ refer
};

// The text "2 restarts used up within 3600 s (--max-restarts 2)".
std::string used_up_text(const RestartBudget& budget);

}  // namespace paceline::launcher
