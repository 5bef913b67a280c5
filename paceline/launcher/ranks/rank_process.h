#pragma once

// One rank from the agent's point of view: its process, its output, its end, and the processes that
// it left running.

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

namespace paceline::launcher {

class RankProcess {
 public:
  // `out` becomes the rank's stdout; `spec` must not contain output descriptors. `start` starts the
  // process. Error(kSystem).
  RankProcess(int rank, ProcessSpec spec, Pipe out, std::unique_ptr<RankOutput> output,
              const std::function<Process(const ProcessSpec&)>& start);

  int rank() const { return rank_; }
  const Process& process() const { return process_; }
  RankOutput& output() { return *output_; }
  const RankOutput& output() const { return *output_; }
  bool running() const { return !end_; }
  const std::optional<RankEnd>& end() const { return end_; }

  // Kills the rest of the rank's process group, then reaps its process. Requires: the process has
  // ended. Until the process has been reaped, the kernel gives its pid, which is also the number of
  // the process group, to no other process.
  RankEnd collect();

  // Signals the whole process group, so that a program that a shell script has started receives the
  // signal too. Does nothing once the rank has ended.
  void send(int signal) const;
  // Whether the rank's process has a handler for the signal.
  bool handles(int signal) const;

 private:
  int rank_;
  std::unique_ptr<RankOutput> output_;
  std::chrono::steady_clock::time_point started_;
  Process process_;
  std::optional<RankEnd> end_;
};

// Finds the processes that ranks left running although they ended with exit code 0: a program that
// went into the background, whose job must not be mistaken for a success. Such processes are ended
// with the job, and text() reports them to the user.
//
// Helpers of a rank may notice its end a moment later than the launcher does. So all such processes
// of a generation together get half a second to end before they are counted.
//
// Requires: this process adopts orphans (launcher/process/descendants.h).
//
// Thread safety: none.
class Leftovers {
 public:
  // Looks in the process group of this rank. Requires: the rank's process has ended but has not
  // been reaped. Finds nothing when the rank failed.
  void look_at_group(int rank, pid_t process);
  // Looks for processes that left their rank's process group: all children of this process except
  // `spared`. Requires: all ranks have ended.
  void look_for_strays(const std::vector<pid_t>& spared);
  // A line for each rank that left processes running; "" if none did.
  std::string text() const;

 private:
  struct Left {
    int count = 0;
    std::string first;  // name of the first process
  };

  template <class Belongs>
  std::vector<pid_t> remaining(Belongs belongs);
  void add(int rank, pid_t process);

  std::optional<Deadline> patience_;
  std::map<int, Left> by_rank_;  // -1: it is not known which rank left them
  std::set<pid_t> known_;        // already counted
};

}  // namespace paceline::launcher
