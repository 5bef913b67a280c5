#pragma once

// Notices on one host that ranks stand still: no progress, idle, stopped, or missing in the first
// meeting.

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>

#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/rendezvous/arrival.h"
#include "paceline/launcher/diagnosis/thread_census.h"
#include "paceline/launcher/messages/agent_messages.h"

namespace paceline::launcher {

// The signs by which a launcher knows that its ranks stand still where no operation shows it:
//
//   idle     no rank has used its cpu in the second half of the limit. Counts only for ranks that
//            made steps before, because a rank that evaluates or loads computes.
//   stopped  a process of a rank was stopped (state T, not by a debugger) at both ends of that time
//   missing  ranks have waited for others in the first meeting of all for the limit
//
// Looks only while ranks stand still, a few times in the limit. Thread safety: none.
class QuietRanks {
 public:
  using Clock = AwakeClock;
  using Ranks = std::map<int, pid_t>;
  using Meeting = std::function<Absence()>;

  // `meeting` may be empty, where nothing is known of it.
  QuietRanks(std::chrono::nanoseconds limit, Meeting meeting)
      : limit_(limit), meeting_(std::move(meeting)) {}

  // To be called when a rank has moved.
  void forget();
  // To be called while all ranks have stood still for longer than half of the limit. `recorded`:
  // the ranks that have begun an operation or made a step; only these can be stopped ranks.
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

// Notices that the ranks of this machine stand still: for the limit none has begun an operation or
// made a step, and it is not a pause, because a rank has waited in an operation for all that time,
// or QuietRanks shows a sign. A rank that only computes is no hang as long as no rank waits for it
// for so long. Whether the job hangs, and which rank blocks it, is found together with the other
// hosts (hang_inquiry.h).
//
// Progress is read from outside, from the flight records and step gauges: sixteen bytes of each
// rank's files. The ranks notice nothing. Programs that make no group and count no steps are never
// reported as hanging.
//
// Thread safety: none.
class HangWatch {
 public:
  using Clock = AwakeClock;
  using Ranks = QuietRanks::Ranks;

  // `directory` has the records; `meeting` may be empty.
  HangWatch(std::chrono::nanoseconds timeout, std::string directory, QuietRanks::Meeting meeting);

  // How often to look.
  std::chrono::nanoseconds interval() const;
  // Whether these ranks stand still: true once, and again every quarter of the timeout until it is
  // settled or there is progress.
  bool look(const Ranks& ranks, Clock::time_point now = Clock::now());
  // The signs besides their records, as of the last look.
  Standstill standstill(const Ranks& ranks, Clock::time_point now = Clock::now()) const;
  // This standstill has been reported; `settled`: with all that can be known of it.
  void tell(bool settled);
  // The seconds that a standstill took that was reported, once, when there is progress again.
  std::optional<double> take_recovery();

 private:
  struct Progress {
    std::uint64_t begun = 0, steps = 0;
    bool operator==(const Progress&) const = default;
  };

  Progress progress_of(int rank) const;
  bool is_suspicious(const Ranks& ranks) const;
  bool is_waited_long(const Ranks& ranks) const;

  const std::chrono::nanoseconds timeout_;
  const std::string directory_;
  std::map<int, Progress> progress_;
  QuietRanks quiet_;
  Clock::time_point moved_;     // the last progress
  Clock::time_point reported_;  // when look() last returned true
  bool told_ = false, settled_ = false;
  std::optional<double> recovered_;
};

}  // namespace paceline::launcher
