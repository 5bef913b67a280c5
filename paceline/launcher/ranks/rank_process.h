#pragma once

// One rank as the agent sees it: its process, its output, how it ended, and the processes that it
// left running.

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <sys/types.h>

#include "paceline/engine/core/deadline.h"
#include "paceline/launcher/output/rank_output.h"
#include "paceline/launcher/process/process.h"
#include "paceline/launcher/process/process_end.h"

namespace paceline::launcher {

class RankProcess {
 public:
  // `out` becomes its stdout; `spec` comes without output descriptors. `start` starts the process.
  // Error(kSystem).
  RankProcess(int rank, ProcessSpec spec, Pipe out, std::unique_ptr<RankOutput> output,
              const std::function<Process(const ProcessSpec&)>& start);

  int rank() const { return rank_; }
  const Process& process() const { return process_; }
  RankOutput& output() { return *output_; }
  const RankOutput& output() const { return *output_; }
  bool running() const { return !end_; }
  const std::optional<RankEnd>& end() const { return end_; }

  // Ends the rest of the process's group, then waits for the process, which has ended. Until it
  // has been waited for, the kernel gives its pid, and so the group's number, to no other process.
  RankEnd collect();

  // Signals the whole group, so that programs behind a shell script get it too. Does nothing once
  // the rank has ended.
  void send(int signal) const;

 private:
  int rank_;
  std::unique_ptr<RankOutput> output_;
  std::chrono::steady_clock::time_point started_;
  Process process_;
  std::optional<RankEnd> end_;
};

// Finds the processes that ranks left running although they ended with exit code 0: a program that
// went into the background, whose job must not be taken for one that succeeded. Such processes are
// ended with the job, and text() tells the user.
//
// Helpers of a rank notice its end a moment later than the launcher, so those that are on their way
// out get half a second, once for all ranks of a generation.
//
// Requires: this process adopts orphans (launcher/process/descendants.h).
//
// Thread safety: none.
class Leftovers {
 public:
  // Looks in the process group of this rank, whose process has ended but not been waited for. Finds
  // nothing when the rank failed.
  void look_at_group(int rank, pid_t process);
  // Looks for processes that left their rank's group: once all ranks have ended, all but `spared`.
  void look_for_strays(const std::vector<pid_t>& spared);
  // A line for each rank that left something; "" when none did.
  std::string text() const;

 private:
  struct Left {
    int count = 0;
    std::string first;  // its name
  };

  template <class Belongs>
  std::vector<pid_t> staying(Belongs belongs);
  void add(int rank, pid_t process);

  std::optional<Deadline> patience_;
  std::map<int, Left> by_rank_;  // -1: of a rank that is not known
  std::set<pid_t> known_;        // counted; they are being ended
};

}  // namespace paceline::launcher
