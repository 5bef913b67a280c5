#pragma once

// Carries out a job's chaos plan on the ranks of this node, and counts the faults.
//
// Thread safety: none.

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "paceline/engine/core/deadline.h"
#include "paceline/launcher/job/job_flights.h"
#include "paceline/launcher/output/console.h"
#include "paceline/launcher/ranks/chaos_plan.h"

namespace paceline::launcher {

class ChaosInjector {
 public:
  // Access to the ranks that run. Both functions return false for a rank that does not run on this
  // node.
  struct Ranks {
    int world_size = 0;
    std::function<bool(int rank, int signal)> send;
    std::function<bool(int rank, const std::string& because)> kill_on_purpose;  // kills the rank
  };

  // Does nothing if `faults` is empty. The references must outlive the injector.
  ChaosInjector(const std::vector<Fault>& faults, std::uint64_t seed, Consoles& consoles,
                const JobFlights& flights);

  // Call this after each iteration of the loop while ranks run. Faults that are due between two
  // generations hit the ranks of the next generation.
  void tend(const Ranks& ranks);
  Deadline next_deadline(bool running) const;
  // "3 (kill 2, stop 1), seed 7", the ranks that faults name but the job never had, and the steps
  // that ranks of this node did not reach; empty without faults.
  std::string summary() const;

 private:
  using Clock = Deadline::Clock;

  void apply(const ChaosPlan::Action& action, const Ranks& ranks);
  double seconds() const;
  std::string missing_ranks() const;
  std::string missing_steps() const;

  Consoles& consoles_;
  const JobFlights& flights_;
  const std::uint64_t seed_;
  const bool active_;
  ChaosPlan plan_;
  std::optional<Clock::time_point> started_;  // when the first generation started
  std::map<std::string, int> faults_;         // the number of faults on this node, by name
  std::set<int> named_;                       // ranks that faults name
  int largest_world_ = 0;
  // A fault at a step, and the most steps that its rank has reported, if that rank ran on this
  // node.
  struct AtStep {
    int rank = 0;
    std::uint64_t step = 0;
    std::optional<std::uint64_t> reported;
  };
  std::vector<AtStep> at_steps_;
};

}  // namespace paceline::launcher
