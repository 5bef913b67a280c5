#pragma once

// The signs by which a launcher knows that its ranks stand still where no operation tells it:
//
//   idle     none of them has used its cpu in the second half of the limit. Says something only of
//            ranks that made steps before: one that evaluates or loads computes.
//   stopped  a process of a rank was stopped (state T, not by a debugger) at both ends of that time
//   missing  ranks have waited in the first meeting of all for others for the limit
//
// Looks only while ranks stand still, a few times in the limit. Thread safety: none.

#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <sys/types.h>

#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/rendezvous/arrival.h"
#include "paceline/launcher/diagnosis/thread_census.h"
#include "paceline/launcher/messages/agent_messages.h"

namespace paceline::launcher {

class QuietRanks {
 public:
  using Clock = AwakeClock;
  using Ranks = std::map<int, pid_t>;
  using Meeting = std::function<Absence()>;

  // `meeting` may be empty: nothing is known of it here.
  QuietRanks(std::chrono::nanoseconds limit, Meeting meeting)
      : limit_(limit), meeting_(std::move(meeting)) {}

  // A rank has moved.
  void forget();
  // They stand still, since longer than half of the limit. `recorded`: those that have begun an
  // operation or made a step; what others do is their own affair.
  void look(const Ranks& ranks, const std::vector<int>& recorded, Clock::time_point now);

  bool idle() const { return idle_; }
  const std::vector<int>& stopped() const { return stopped_; }
  const Absence& meeting() const { return absence_; }

 private:
  struct Sight {
    Clock::time_point at;
    std::map<int, ThreadTimes> times;
    std::vector<int> stopped;
  };
  struct Assembly {
    Clock::time_point at;
    Absence absence;
  };

  Sight sight_of(const Ranks& ranks, const std::vector<int>& recorded, Clock::time_point now) const;
  void compare(const Sight& before, const Sight& now);
  void look_at_meeting(Clock::time_point now);

  const std::chrono::nanoseconds limit_;
  const Meeting meeting_;
  std::optional<Sight> sight_;
  std::optional<Assembly> assembly_;
  bool idle_ = false;
  std::vector<int> stopped_;
  Absence absence_;
};

}  // namespace paceline::launcher
