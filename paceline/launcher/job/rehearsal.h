#pragma once

// Carries out a job's chaos plan on the ranks of this node, and counts what it did.
//
// Thread safety: none.

#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "paceline/engine/core/deadline.h"
#include "paceline/launcher/job/chaos_plan.h"
#include "paceline/launcher/job/generation.h"
#include "paceline/launcher/job/job_flights.h"
#include "paceline/launcher/output/console.h"

namespace paceline::launcher {

class Rehearsal {
 public:
  // Without faults it does nothing. The references must outlive it.
  Rehearsal(const std::vector<Fault>& faults, std::uint64_t seed, Consoles& consoles,
            const JobFlights& flights);

  // After each turn of the loop, while ranks run. Faults that come due meanwhile hit the next ones.
  void tend(Generation& running);
  Deadline next_deadline(bool running) const;
  // "3 (kill 2, stop 1), seed 7", and which faults named ranks that the job never had; empty
  // without faults.
  std::string summary() const;

 private:
  using Clock = Deadline::Clock;

  void apply(const ChaosPlan::Action& action, Generation& running);
  double seconds() const;
  std::string missing_ranks() const;

  Consoles& consoles_;
  const JobFlights& flights_;
  const std::uint64_t seed_;
  const bool active_;
  ChaosPlan plan_;
  std::optional<Clock::time_point> started_;  // with the first generation
  std::map<std::string, int> faults_;         // done here, by name
  std::set<int> named_;                       // ranks that faults name
  int largest_world_ = 0;
};

}  // namespace paceline::launcher
