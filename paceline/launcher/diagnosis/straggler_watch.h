#pragma once

// Finds a rank that keeps the others waiting, in a job on one host (StragglerWatch) or on several
// hosts (StragglerReport on each host, StragglerInquiry at the coordinator). Also finds the
// probable cause: a quota throttles the rank, other load runs on its cpus, it waits for something
// such as data, or it simply computes longer.
//
// The ranks do nothing for this: the launcher reads from their flight records how long they wait
// for each other, and from /proc what each rank does meanwhile.

#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <sys/types.h>

#include "paceline/engine/collectives/flight/verdicts.h"
#include "paceline/engine/telemetry/flight_file.h"
#include "paceline/launcher/messages/agent_messages.h"

namespace paceline::launcher {

// How a rank spent the time between two readings, in seconds. The times of all its threads are
// added up, so the sum of the parts may exceed the span.
struct RankActivity {
  double span = 0;
  double on_cpu = 0;
  double ready = 0;          // it could run, and no cpu was free for it
  double in_operations = 0;  // inside collectives and messages
  double throttled = 0;      // the cpu quota of its whole cgroup was used up
};

// "other load on its cpus: it was ready to run and got no cpu 45% of the time". A pure function.
std::string straggler_cause(const RankActivity& activity);

// The seconds that /proc and the cgroup have counted so far for a process and its descendants.
struct ActivityCounters {
  double on_cpu = 0, ready = 0, throttled = 0;
};
ActivityCounters activity_of(pid_t pid);
// Reads cpu.stat of cgroup v2 (throttled_usec) or v1 (throttled_time); 0 if it cannot be read.
// `membership` is the text of /proc/PID/cgroup.
double throttled_seconds(const std::string& cgroups, const std::string& membership);

// Removes all operations except those that the rank began and finished in the last `seconds`.
void keep_since(Flight& flight, double seconds);
// The share of time inside operations, between the beginning of the first operation in the record
// and the end of the last one.
double share_inside(const Flight& flight);

// Finds a straggler among the ranks of one host, whose records use the same clock: a rank that
// arrives last, so that the others spend more than a tenth of the time waiting for it. This waiting
// must be more than half of all waiting (engine/collectives/flight/verdicts.h).
//
// Thread safety: none.
class StragglerWatch {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr int kLooks = 3;  // calls of look() within `patience`

  // Reports a rank that has been a straggler for `patience`. `directory` has the flight records.
  StragglerWatch(std::chrono::nanoseconds patience, std::string directory);

  // Call this kLooks times within `patience`, at equal intervals. Returns "rank 1 keeps the others
  // waiting: ..." once each time that a rank becomes a straggler.
  std::optional<std::string> look(const std::map<int, pid_t>& ranks,
                                  Clock::time_point now = Clock::now());

 private:
  void forget();

  const std::chrono::nanoseconds patience_;
  const std::string directory_;
  int rank_ = -1;  // the straggler at the last look; -1: none
  int times_ = 0;  // the number of looks in a row that found this rank
  bool told_ = false;
  Clock::time_point since_;  // the first of these looks
  ActivityCounters before_;  // counters of rank_ at the first of these looks
};

// One host's contribution to finding a straggler among the ranks of several hosts: measures how
// long the host's ranks are inside operations, and finds the probable cause if one of these ranks
// is the straggler.
//
// Thread safety: none.
class StragglerReport {
 public:
  using Clock = std::chrono::steady_clock;

  // Each look considers the operations of the last `patience`.
  explicit StragglerReport(std::chrono::nanoseconds patience) : patience_(patience) {}

  // The shares of time that the ranks in `ranks` spent inside operations, from their flight
  // records.
  std::vector<RankShare> look(std::vector<Flight> flights, const std::map<int, pid_t>& ranks,
                              Clock::time_point now = Clock::now());
  // "rank 1 keeps the others waiting: ...", with the cause. The cause covers the time since the
  // second-to-last look; the text is empty if the rank was not running at that look.
  std::string text(const StragglerOrder& order, pid_t pid,
                   Clock::time_point now = Clock::now()) const;

 private:
  const std::chrono::nanoseconds patience_;
  struct Look {
    Clock::time_point when;
    std::map<int, ActivityCounters> counters;  // of each rank
  };
  // An order may come immediately after the last look; then only the time since the look before it
  // is long enough.
  Look last_, before_last_;
};

// Finds the straggler of a job on several hosts. Every agent regularly reports the share of time
// that each of its ranks spent inside operations, that is, working together or waiting for other
// ranks. A straggler does not wait for other ranks, so its share is by far the lowest: at least a
// tenth of the time below the next lowest share, and at most half of that share, four times in a
// row. Only ranks with at least 20 operations are compared. Shares need no common clock.
//
// Like a HangInquiry (hang_inquiry.h), a StragglerInquiry belongs to the job's coordinator.
//
// Thread safety: none. Does no I/O.
class StragglerInquiry {
 public:
  using Agent = int;

  // Call when a generation begins, with its agents. Forgets all other agents.
  void begin(int generation, std::set<Agent> agents);
  void take(Agent from, const Shares& report);
  void lose(Agent agent);
  // Returns the orders since the last call. Each is for the agent of the rank that it names.
  std::vector<Mail> take_mail() { return outbox_.take(); }

 private:
  static constexpr int kTimes = 4;
  void judge();

  int generation_ = 0;
  std::set<Agent> agents_;
  std::map<Agent, Shares> reports_;  // reports since the last judgement
  int rank_ = -1;                    // the straggler of the last judgement; -1: none
  int times_ = 0;                    // the number of judgements in a row that found this rank
  Outbox outbox_;
};

}  // namespace paceline::launcher
