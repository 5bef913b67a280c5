#pragma once

// The signs by which a launcher knows that its ranks stand still where no operation tells it:
//
//   idle     none of them has used its cpu in the second half of the limit. Says something only of
//            ranks that made steps before: one that evaluates or loads computes.
//   stopped  a process of a rank was stopped (state T, not by a debugger) at both ends of that time
//   missing  ranks have waited in the first meeting of all for others for the limit
//
// Looks only while ranks stand still, a few times in the limit. Thread safety: none.

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

// Notices that ranks stand still: none of this machine begins an operation or makes a step any
// more, for the limit, and that is not a pause: some rank has waited in an operation for all that
// time, or one of the signs of quiet_ranks.h shows it. A rank that only computes is not a hang as
// long as no rank waits for it for so long. Whether the job hangs, and because of which rank, is
// found together with the other hosts (hang_inquiry.h).
//
// Progress is known by the flight records and step gauges: sixteen bytes of each rank's files, read
// from outside. The ranks notice nothing. Programs that make no group and count no steps are never
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
  // These ranks stand still: true once, and every quarter of the timeout again until it is settled
  // or there is progress.
  bool look(const Ranks& ranks, Clock::time_point now = Clock::now());
  // What is known of them besides their records, by the last look.
  Standstill standstill(const Ranks& ranks, Clock::time_point now = Clock::now()) const;
  // This standstill has been spoken of; when `settled`, all that can be known of it was said.
  void tell(bool settled);
  // After one that was spoken of: the seconds that it took, once, when there is progress again.
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
  Clock::time_point reported_;  // when look() last said so, of this standstill
  bool told_ = false, settled_ = false;
  std::optional<double> recovered_;
};

}  // namespace paceline::launcher
