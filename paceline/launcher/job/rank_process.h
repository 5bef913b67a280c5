#pragma once

// One rank as the agent sees it: its process, its output, how it ended.

#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include "paceline/launcher/output/rank_output.h"
#include "paceline/launcher/process/process.h"
#include "paceline/launcher/process/rank_end.h"

namespace paceline::launcher {

class RankProcess {
 public:
  // `out` is its stdout; `spec` comes without its output descriptors. Error(kSystem).
  RankProcess(int rank, ProcessSpec spec, Pipe out, std::unique_ptr<RankOutput> output,
              const std::function<Process(const ProcessSpec&)>& start);

  int rank() const { return rank_; }
  const Process& process() const { return process_; }
  RankOutput& output() { return *output_; }
  const RankOutput& output() const { return *output_; }
  bool running() const { return !end_; }
  const std::optional<RankEnd>& end() const { return end_; }

  // Waits for the process, which has ended, after ending what is left of its group. While it has
  // not been waited for, its pid and so the group's number cannot be given to anybody else.
  RankEnd collect();

  // To the whole group, so that programs behind a shell script get it too. Nothing once the rank
  // has ended.
  void send(int signal) const;

 private:
  int rank_;
  std::unique_ptr<RankOutput> output_;
  std::chrono::steady_clock::time_point started_;
  Process process_;
  std::optional<RankEnd> end_;
};

}  // namespace paceline::launcher
