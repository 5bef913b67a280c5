#pragma once

// One line that follows the training on a terminal, plain lines elsewhere: rank 0's view.

#include <chrono>
#include <cstdint>
#include <string>

#include "paceline/train/loop.h"

namespace paceline::train {

class Progress {
 public:
  // Writes to stdout. `world_size` scales this rank's samples to the job's; a silent one writes
  // nothing.
  Progress(std::int64_t total_steps, int world_size, bool silent);

  void after_step(const StepReport& report);
  // Ends the line under way and writes `line` below it.
  void note(const std::string& line);

 private:
  void write(const StepReport& report);

  const std::int64_t total_steps_;
  const int world_size_;
  const bool silent_;
  const bool terminal_;
  std::chrono::steady_clock::time_point last_written_;
  std::int64_t samples_since_ = 0;
  bool in_line_ = false;
};

}  // namespace paceline::train
