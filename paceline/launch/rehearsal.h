#pragma once

// Carries out a job's chaos plan on the ranks of this node, and says at the end what it came to.
//
// Thread safety: none.

#include <chrono>
#include <map>
#include <string>

#include "paceline/core/deadline.h"
#include "paceline/launch/chaos_plan.h"
#include "paceline/launch/consoles.h"
#include "paceline/launch/generation.h"

namespace paceline::launch {

class Rehearsal {
 public:
  // Without faults it does nothing.
  Rehearsal(const std::vector<Fault>& faults, std::uint64_t seed, Consoles& consoles);

  // After each turn of the loop; null while no ranks run. Faults that come due meanwhile hit the
  // next ranks.
  void tend(Generation* running);
  Deadline next_deadline(bool running) const;
  // "paceline: chaos: 3 faults ..."; empty without faults.
  std::string summary() const;

 private:
  using Clock = Deadline::Clock;

  void apply(const ChaosPlan::Action& action, Generation& running);
  double seconds() const;

  Consoles& consoles_;
  const std::uint64_t seed_;
  const bool active_;
  ChaosPlan plan_;
  std::optional<Clock::time_point> started_;  // with the first generation
  std::optional<Clock::time_point> idle_since_;
  std::chrono::duration<double> idle_{};  // from the end of a generation to the start of the next
  int last_generation_ = 0;
  std::map<std::string, int> faults_;  // done here, by name
};

}  // namespace paceline::launch
