#pragma once

// Notices on one host that the ranks make no progress, and why: they wait in an operation, are idle
// or stopped, or wait in the first rendezvous for missing ranks.

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

// The signs that the ranks make no progress although no flight record shows it:
//
//   idle     no rank used more than 2% of a cpu between the last two snapshots, which are at least
//            half of the limit apart. HangWatch uses this sign only after steps were made. Ranks
//            that evaluate or load data do not show this sign, because they compute.
//   stopped  a process of a rank was stopped (state T, not by a debugger) in both snapshots
//   missing  ranks have waited for other ranks in the first rendezvous for as long as the limit
//
// HangWatch calls look() only while the ranks make no progress. Thread safety: none.
class QuietRanks {
 public:
  using Clock = AwakeClock;
  using Ranks = std::map<int, pid_t>;
  using Meeting = std::function<Absence()>;

  // `meeting` reads which ranks wait in the first rendezvous and which are missing; it may be empty
  // if this agent cannot know that.
  QuietRanks(std::chrono::nanoseconds limit, Meeting meeting)
      : limit_(limit), meeting_(std::move(meeting)) {}

  // Call this when a rank has made progress.
  void forget();
  // Call this while no rank has made progress for at least half of the limit. `recorded`: the ranks
  // that have begun an operation or made a step; only these can be reported as stopped.
  void look(const Ranks& ranks, const std::vector<int>& recorded, Clock::time_point now);

  bool idle() const { return idle_; }
  const std::vector<int>& stopped() const { return stopped_; }
  const Absence& meeting() const { return absence_; }

 private:
  struct Snapshot {
    Clock::time_point at;
    std::map<int, ThreadTimes> times;
    std::vector<int> stopped;
  };
  struct Assembly {
    Clock::time_point at;
    Absence absence;
  };

  Snapshot snapshot_of(const Ranks& ranks, const std::vector<int>& recorded,
                       Clock::time_point now) const;
  void compare(const Snapshot& before, const Snapshot& now);
  void look_at_meeting(Clock::time_point now);

  const std::chrono::nanoseconds limit_;
  const Meeting meeting_;
  std::optional<Snapshot> snapshot_;
  std::optional<Assembly> assembly_;
  bool idle_ = false;
  std::vector<int> stopped_;
  Absence absence_;
};

// Notices that the ranks of this machine make no progress: within the timeout no rank has begun an
// operation or made a step. A mere pause does not count: a rank must have waited in an operation
// all that time, or QuietRanks must have found that the ranks are idle, stopped, or missing from
// the first rendezvous. A rank that only computes is not reported, unless another rank has waited
// for it for as long as the timeout. Whether the job hangs, and which rank blocks it, is decided
// together with the other hosts (hang_inquiry.h).
//
// The agent reads the progress from the flight records and step gauges, at most 80 bytes per rank
// and look; it reads whole flight records only while no rank makes progress. The ranks are not
// disturbed. Programs that create no group and count no steps are never reported as hanging.
//
// Thread safety: none.
class HangWatch {
 public:
  using Clock = AwakeClock;
  using Ranks = QuietRanks::Ranks;

  // `directory` has the flight records; `meeting` may be empty.
  HangWatch(std::chrono::nanoseconds timeout, std::string directory, QuietRanks::Meeting meeting);

  // The time between two calls of look().
  std::chrono::nanoseconds interval() const;
  // Returns true when these ranks make no progress, and again after every quarter of the timeout,
  // until the standstill is settled or there is progress.
  bool look(const Ranks& ranks, Clock::time_point now = Clock::now());
  // The signs that are not in the flight records, as of the last look.
  Standstill standstill(const Ranks& ranks, Clock::time_point now = Clock::now()) const;
  // Call this when the standstill has been reported. `settled`: the report names the ranks that
  // block the others, so look() does not return true for this standstill again.
  void tell(bool settled);
  // After a reported standstill has ended, returns once how many seconds it lasted; otherwise
  // nullopt.
  std::optional<double> take_recovery();

 private:
  struct Progress {
    std::uint64_t begun = 0, steps = 0;
    bool operator==(const Progress&) const = default;
  };

  Progress progress_of(int rank) const;
  bool is_suspicious(const Ranks& ranks) const;
  bool has_long_wait(const Ranks& ranks) const;

  const std::chrono::nanoseconds timeout_;
  const std::string directory_;
  std::map<int, Progress> progress_;
  QuietRanks quiet_;
  Clock::time_point moved_;     // when a rank last made progress
  Clock::time_point reported_;  // when look() last returned true
  bool told_ = false, settled_ = false;
  std::optional<double> recovered_;
};

}  // namespace paceline::launcher
