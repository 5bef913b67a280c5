#pragma once

// One host's part in finding a straggler among the ranks of several (straggler_inquiry.h): how long
// its ranks are inside operations, and, of the one that is found, what the system knows of the
// reason (straggler_watch.h).
//
// Thread safety: none.

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include <sys/types.h>

#include "paceline/launcher/diagnosis/straggler_watch.h"
#include "paceline/launcher/messages/agent_messages.h"

namespace paceline::launcher {

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

}  // namespace paceline::launcher
