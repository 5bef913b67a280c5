#pragma once

// Finds a rank that keeps the others waiting, on one host (StragglerWatch) or together with others
// (StragglerReport at each host, StragglerInquiry at the coordinator), and the probable cause: a
// quota throttles it, other load runs on its cpus, it waits for something such as data, or it
// simply computes longer.
//
// Everything is read from outside: flight records show how long ranks wait for each other, and
// /proc shows what each rank did meanwhile.

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

// How a rank spent the time between two looks, in seconds. All its threads count together, so the
// parts may add up to more than the span.
struct RankActivity {
  double span = 0;
  double on_cpu = 0;
  double ready = 0;          // could run, and no cpu was free for it
  double in_operations = 0;  // inside collectives and messages
  double throttled = 0;      // the quota of its cgroup, all processes together, was used up
};

// "it was ready to run and got no cpu 45% of the time: other load on its cpus". A pure function.
std::string straggler_cause(const RankActivity& activity);

// The seconds that /proc and the cgroup have counted so far.
struct ActivityCounters {
  double on_cpu = 0, ready = 0, throttled = 0;
};
ActivityCounters activity_of(pid_t pid);
// Reads cpu.stat of cgroup v2 (throttled_usec) or v1 (throttled_time).
double throttled_seconds(const std::string& cgroups, const std::string& membership);

// Removes all operations but those that the rank finished in the last seconds.
void keep_since(Flight& flight, double seconds);
// The share of the time inside operations, from the first to the last one in the record.
double share_inside(const Flight& flight);

// Finds a straggler among the ranks of one host, whose records share a clock: the rank that comes
// last and causes at least half of all waiting and a tenth of the time
// (engine/collectives/flight/verdicts.h).
//
// Thread safety: none.
class StragglerWatch {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr int kLooks = 3;  // within the patience

  // A rank is reported as one after `patience`. `directory` has the records.
  StragglerWatch(std::chrono::nanoseconds patience, std::string directory);

  // To be called every kLooks-th part of the patience. Returns "rank 1 keeps the others waiting:
  // ..." once each time that a rank becomes a straggler.
  std::optional<std::string> look(const std::map<int, pid_t>& ranks,
                                  Clock::time_point now = Clock::now());

 private:
  void forget();

  const std::chrono::nanoseconds patience_;
  const std::string directory_;
  int rank_ = -1;  // the straggler at the last look; -1: none
  int times_ = 0;  // how often in a row
  bool told_ = false;
  Clock::time_point since_;
  ActivityCounters before_;  // of that rank
};

// One host's part in finding a straggler among the ranks of several hosts: how long its ranks are
// inside operations, and the probable cause once one of them is found.
//
// Thread safety: none.
class StragglerReport {
 public:
  using Clock = std::chrono::steady_clock;

  // Looks at the last `patience` of the ranks.
  explicit StragglerReport(std::chrono::nanoseconds patience) : patience_(patience) {}

  // The shares of the ranks that run, from their records.
  std::vector<RankShare> look(std::vector<Flight> flights, const std::map<int, pid_t>& ranks,
                              Clock::time_point now = Clock::now());
  // "rank 1 keeps the others waiting: ...", with the cause since the last look but one; empty for a
  // rank that was not looked at twice.
  std::string text(const StragglerOrder& order, pid_t pid,
                   Clock::time_point now = Clock::now()) const;

 private:
  const std::chrono::nanoseconds patience_;
  struct Look {
    Clock::time_point when;
    std::map<int, ActivityCounters> counters;  // of each rank
  };
  Look last_, before_last_;  // an order may follow the last look at once
};

// Finds the straggler of a job on several hosts. Every agent reports now and then the share of the
// time that each of its ranks spent inside operations, that is working together or waiting for the
// others. A straggler waits for no rank itself, so its share is the lowest by far: at least a tenth
// of the time below the next one, and at most half of it, four reports in a row. Shares need no
// common clock.
//
// The job's coordinator holds it, as the inquiry about a hang (hang_inquiry.h).
//
// Thread safety: none. Pure.
class StragglerInquiry {
 public:
  using Agent = int;

  // The agents of a generation that begins. Forgets all others.
  void begin(int generation, std::set<Agent> agents);
  void take(Agent from, const Shares& report);
  void lose(Agent agent);
  // Orders since the last call, each to the agent of the rank that it names.
  std::vector<Mail> take_mail() { return outbox_.take(); }

 private:
  static constexpr int kTimes = 4;
  void judge();

  int generation_ = 0;
  std::set<Agent> agents_;
  std::map<Agent, Shares> reports_;  // since the last judgement
  int rank_ = -1;                    // the straggler of the last judgement; -1: none
  int times_ = 0;                    // how often in a row
  Outbox outbox_;
};

}  // namespace paceline::launcher
