#pragma once

// One line that follows the training on a terminal, plain lines elsewhere: rank 0's view, with the
// time that is left at the pace so far, evaluations and checkpoints included.

#include <chrono>
#include <cstdint>
#include <string>

#include "paceline/training/train/loop.h"
#include "paceline/training/train/sample_unit.h"

namespace paceline::train {

// "2:03" and "1:02:03" of so many seconds.
std::string clock_text(std::int64_t seconds);

class Progress {
 public:
  // Writes to stdout. `replicas`: the ranks that have batches of their own, which scale this rank's
  // samples to the job's; a silent one writes nothing.
  Progress(std::int64_t total_steps, int replicas, bool silent, const SampleUnit& unit = {});

  void after_step(const StepReport& report);
  // Ends the line under way and writes `line` below it.
  void note(const std::string& line);

 private:
  void write(const StepReport& report);
  std::string time_left(std::int64_t step) const;

  const std::int64_t total_steps_;
  const int replicas_;
  const bool silent_;
  const SampleUnit unit_;
  const bool terminal_;
  std::chrono::steady_clock::time_point last_written_;
  std::chrono::steady_clock::time_point first_step_end_;
  std::int64_t first_step_ = -1;  // of this process
  std::int64_t samples_since_ = 0;
  bool in_line_ = false;
};

}  // namespace paceline::train
