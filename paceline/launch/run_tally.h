#pragma once

// What a job with several generations came to on this node: how long it took, how many steps its
// ranks made, how many of them were made again, and its goodput. From the ranks' step gauges
// (telemetry/step_gauge.h), where they keep one.
//
//   steps made   of all generations together; the step in which a rank died is none
//   steps kept   from where the training stood at the first count to where it stands at the last
//   lost         made - kept: what a restart had to make again
//   goodput      (time of the steps made x kept / made) / (time from the first start to the last
//                end). Starts, restores, evaluation, saving and pauses are not goodput.
//
// Thread safety: none. Pure; time comes in as seconds since any moment.

#include <cstdint>
#include <optional>
#include <string>

#include "paceline/telemetry/step_gauge.h"

namespace paceline::launch {

class RunTally {
 public:
  void started(double seconds);
  // Nothing of the generation runs any more. `steps`: of one of its ranks; nothing when none of
  // them counts.
  void ended(double seconds, const std::optional<StepReading>& steps);

  int num_generations() const { return num_generations_; }
  // Nothing where the ranks do not count, or do not say where they began.
  std::optional<std::uint64_t> steps_lost() const;
  std::optional<double> goodput() const;
  // Several lines, each after two spaces.
  std::string text() const;

 private:
  struct Steps {
    std::uint64_t made = 0;
    double seconds = 0;                  // of them
    std::optional<std::uint64_t> first;  // where the training stood at the first count
    std::uint64_t last = 0;              // and at the last one
    bool placed = true;                  // every generation that made steps said where it began
  };

  double total() const { return end_ - begin_; }

  int num_generations_ = 0;
  double begin_ = 0, end_ = 0;
  double idle_ = 0;  // from the end of a generation to the start of the next
  std::optional<Steps> steps_;
};

}  // namespace paceline::launch
