#pragma once

// Notices a rank that keeps the others waiting for some time, and says what the system knows of the
// reason: it is stopped by a quota, other load runs on its cpus, it waits for something (data), or
// it simply computes longer.
//
// Everything is read from outside: the flight records say who comes last and how long it is waited
// for (engine/collectives/flight/verdicts.h: at least half of all waiting and a tenth of the
// time), /proc says what each rank did meanwhile. Ranks of this machine only; those of several
// hosts: straggler_inquiry.h.
//
// Thread safety: none.

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

// What a rank did between two looks, in seconds; of all its threads together, so that parts may add
// up to more than the span.
struct RankActivity {
  double span = 0;
  double on_cpu = 0;
  double ready = 0;          // could run, and no cpu was free for it
  double in_operations = 0;  // inside collectives and messages
  double throttled = 0;      // the cgroup's quota was used up; of all in the cgroup
};

// "it was ready to run and got no cpu 45% of the time: other load on its cpus". A pure function.
std::string straggler_cause(const RankActivity& activity);

// Seconds that /proc and the cgroup have counted so far.
struct ActivityCounters {
  double on_cpu = 0, ready = 0, throttled = 0;
};
ActivityCounters activity_of(pid_t pid);
// Of cpu.stat, v2 (throttled_usec) or v1 (throttled_time).
double throttled_seconds(const std::string& cgroups, const std::string& membership);

// Leaves what the rank finished in the last seconds.
void keep_since(Flight& flight, double seconds);
// Of the time from the first operation to the last, which may be less than that: the ring ends.
double share_inside(const Flight& flight);

class StragglerWatch {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr int kLooks = 3;  // in the patience

  // A rank is reported as one after `patience`. `directory` has the records.
  StragglerWatch(std::chrono::nanoseconds patience, std::string directory);

  // Call every kLooks-th part of the patience. "rank 1 keeps the others waiting: ...", once for
  // each time a rank becomes one.
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

// One host's part in finding a straggler among the ranks of several (straggler_inquiry.h): how long
// its ranks are inside operations, and, of the one that is found, what the system knows of the
// reason (straggler_watch.h).
//
// Thread safety: none.

class StragglerReport {
 public:
  using Clock = std::chrono::steady_clock;

  // Of the ranks' last `patience`.
  explicit StragglerReport(std::chrono::nanoseconds patience) : patience_(patience) {}

  // Of those that run, by their records.
  std::vector<RankShare> look(std::vector<Flight> flights, const std::map<int, pid_t>& ranks,
                              Clock::time_point now = Clock::now());
  // "rank 1 keeps the others waiting: ..."; empty for a rank that was not looked at twice. With the
  // cause since the last look but one.
  std::string text(const StragglerOrder& order, pid_t pid,
                   Clock::time_point now = Clock::now()) const;

 private:
  const std::chrono::nanoseconds patience_;
  struct Look {
    Clock::time_point when;
    std::map<int, ActivityCounters> counters;  // of each rank
  };
  Look last_, before_last_;  // an order may follow the last at once
};

// Who keeps the others waiting in a job on several hosts. Every agent reports now and then how much
// of the time each of its ranks spent inside operations, that is working together or waiting for
// the others. The rank that the others wait for waits for none itself, so its share is the lowest
// by far: at least a tenth of the time below the next one, and at most half of it, four reports in
// a row. Shares need no common clock.
//
// The job's coordinator holds it, as the inquiry of a hang (hang_inquiry.h).
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
  int rank_ = -1;                    // the straggler then; -1: none
  int times_ = 0;                    // how often in a row
  Outbox outbox_;
};

}  // namespace paceline::launcher
