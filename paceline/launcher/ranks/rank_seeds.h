#pragma once

// The launcher's side of the fork server (engine/rendezvous/fork_server.h): starts ranks, in later
// generations from the seeds that earlier ranks left. A rank is forked from a seed only if
// executing the program would give the same process:
//
//   1. The first message on the seed's socket identifies the seed: the kernel attests the sender's
//      pid, and that process must be a child of this one, so no other process can pose as a seed.
//   2. The program's file is still the one that was executed, and its libraries have not changed
//      since the seed loaded them. The launcher checks the file, the seed checks its libraries.
//   3. Only variables that describe a rank's place, and Paceline's own, have changed since the seed
//      was executed: a library may have read any other variable while it was loaded.
//   4. The seed answers within 0.2 s, and all seeds of a generation within 1 s together. A seed
//      that has ended, is stopped or is late is killed.
//   5. Each order contains the socket for the next seed, so every socket has at most one seed.
//
// In all other cases the program is executed, as at the first start. Seeds are children of this
// process and are ended when this object is destroyed.
//
// Thread safety: none. Requires: the conditions of start_process(), and that orphans become
// children of this process.

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/rendezvous/fork_server.h"
#include "paceline/launcher/process/process.h"

namespace paceline::launcher {

class RankSeeds {
 public:
  // For ranks that execute `program`. If `enabled` is false, every start executes it. `say` reports
  // seeds that could not be used although they were ready.
  RankSeeds(std::string program, bool enabled, std::function<void(const std::string&)> say);
  RankSeeds(const RankSeeds&) = delete;
  RankSeeds& operator=(const RankSeeds&) = delete;
  ~RankSeeds();

  // Call this before the ranks of a generation are started: gives all seeds together one second to
  // answer.
  void begin_generation();
  // Starts a rank from its seed, or by executing the program. `spec.inherited` has one descriptor,
  // which PACELINE_SECRET_FD names. Error(kSystem).
  Process start(int local_rank, ProcessSpec spec);
  // The live seeds, which must be spared when the processes that ranks left are ended.
  std::vector<pid_t> pids();

 private:
  struct Seed {
    Fd socket;
    FileVersion program;      // the file that was executed ...
    Environment environment;  // ... with these variables
    Process process;          // the seed process, once it is ready
  };

  Process execute(Seed& seed, ProcessSpec spec);
  struct ForkResult {
    std::optional<Process> process;
    std::optional<std::string> refusal;  // why a seed that was ready is not used
  };
  ForkResult fork_from(Seed& seed, const ProcessSpec& spec);
  void look_for(Seed& seed);
  void end(Seed& seed);

  const std::string program_;
  const bool enabled_;
  const std::function<void(const std::string&)> say_;
  const int num_inherited_;  // descriptors that every rank gets from this process
  Deadline patience_ = Deadline::after(std::chrono::nanoseconds(0));
  std::vector<Seed> seeds_;  // by local rank
};

// The variables to set (a value) or to remove (nullopt) so that `before` becomes `after`. Returns
// nullopt if the two differ in a variable that rule 3 does not allow to differ.
using VariableChanges = std::map<std::string, std::optional<std::string>>;
std::optional<VariableChanges> changes_of_place(const Environment& before,
                                                const Environment& after);

}  // namespace paceline::launcher
