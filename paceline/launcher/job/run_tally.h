#pragma once

// The result of a job with several generations on this node: how long it took, how many steps its
// ranks made, how the time was spent, and how the job ended. The numbers of steps come from the
// ranks' step gauges (engine/telemetry/step_gauge.h), if the ranks keep such gauges.
//
//   steps made   in all generations together, without steps that were interrupted
//   steps kept   from the training's position at the first count to its position at the last one
//   steps lost   steps made - steps kept: the steps that had to be made again after restarts
//
// The time from the first start to the last end is divided completely into:
//
//   kept         time of the steps made x steps kept / steps made
//   made again   time of the steps made x steps lost / steps made
//   recovering   from the end of the last step before a restart to the beginning of the first step
//                after it: the interrupted step, stopping, pausing, starting and restoring
//   own          the rest, which an undisturbed run needs as well: its start up to the first step,
//                and evaluating and saving between steps and at the end
//
//   goodput      time kept / whole time
//   relative     goodput / goodput of a run without restarts
//                = 1 - (time made again + time recovering) / whole time
//
// Thread safety: none. Callers pass times as seconds on this host's monotonic clock.

#include <cstdint>
#include <optional>
#include <string>

#include "paceline/engine/telemetry/step_gauge.h"
#include "paceline/launcher/messages/agent_messages.h"
#include "paceline/launcher/process/process.h"

namespace paceline::launcher {

// How the time of a run was spent, in seconds.
struct TimeSpent {
  double kept = 0, made_again = 0, recovering = 0, own = 0;

  double all() const { return kept + made_again + recovering + own; }
  double lost() const { return made_again + recovering; }
  double goodput() const { return kept / all(); }
  double relative_goodput() const { return 1 - lost() / all(); }
};

class RunTally {
 public:
  void started(double seconds);
  // Call when the generation has ended. `steps`: the step gauge of one of its ranks; nullopt if no
  // rank counts its steps.
  void ended(double seconds, const std::optional<StepReading>& steps);

  int num_generations() const { return num_generations_; }
  // Both are nullopt if the ranks do not count steps, or do not report at which step they began.
  std::optional<std::uint64_t> steps_lost() const;
  std::optional<double> goodput() const;
  // Also nullopt if the ranks do not report when they made their steps.
  std::optional<TimeSpent> time_spent() const;
  // The result for the user: several lines, each indented by two spaces.
  std::string text() const;

 private:
  struct Steps {
    std::uint64_t made = 0;
    double seconds = 0;                  // spent in these steps
    std::optional<std::uint64_t> first;  // the training's position at the first count
    std::uint64_t last = 0;              // the training's position at the last count
    bool placed = true;     // every generation with steps reported at which step it began
    bool timed = true;      // every generation with steps reported when it made them
    double last_ended = 0;  // when the newest step ended
  };

  void add_times(const StepReading& steps);
  double total() const { return end_ - begin_; }
  std::string steps_text() const;

  int num_generations_ = 0;
  double begin_ = 0, end_ = 0;
  double generation_begin_ = 0;
  double idle_ = 0;        // the time between generations
  double recovering_ = 0;  // the time of recovering, up to the newest step
  bool last_made_steps_ = false;
  std::optional<Steps> steps_;
};

// How a job ended, as far as one of its nodes knows.
struct NodeEnd {
  enum class Manner {
    kAgreed,   // ranks ended by an agreed stop, before their work was done
    kStopped,  // a signal stopped this launcher before any rank of the node failed
    kDone,
    kFailed,
  };

  std::optional<EndOrder> order;  // from the coordinator
  int stop_signal = 0;            // the first signal that asked the job to end; 0: none
  bool is_abandoned = false;      // the supervisor has ended
  bool ranks_agreed = false;      // Generation::stopped_as_agreed()
  std::optional<RankEnd> culprit;

  Manner manner() const;
  // The exit code of the job, as JobEnd::exit_code() (launcher/messages/agent_messages.h).
  int exit_code() const;
};

}  // namespace paceline::launcher
