#pragma once

// The launcher's half of the fork server (engine/rendezvous/fork_server.h): starts ranks, in later
// generations from the seeds that the earlier ranks left. A rank grows from a seed only if a start
// by exec would give the same process:
//
//   1. The first word on the seed's socket names the seed: the kernel attests the sender's pid, and
//      the process must be a child of this one, so no other process can pose as a seed.
//   2. The program's file is still the one that was executed, and its libraries are still those
//      that the seed loaded. The launcher checks the file, the seed checks its libraries.
//   3. Only variables that tell a rank's place, and Paceline's own, differ from those with which
//      the seed was executed: a library may have read any other while it was loaded.
//   4. The seed answers within 0.2 s, and all seeds of a generation within 1 s together. A seed
//      that is gone, stopped or late is ended.
//   5. Each order carries the socket of the next seed, so every socket has one seed at most.
//
// In all other cases the program is executed, as at the first start. Seeds are children of this
// process and end with this object.
//
// Thread safety: none. Requires: as start_process(); orphans become children of this process.

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
  // For ranks that execute `program`. With `enabled` false every start is an execution. `say`
  // reports seeds that could not be used although they were ready.
  RankSeeds(std::string program, bool enabled, std::function<void(const std::string&)> say);
  RankSeeds(const RankSeeds&) = delete;
  RankSeeds& operator=(const RankSeeds&) = delete;
  ~RankSeeds();

  // All seeds of a generation together hold its start up for one second at most.
  void begin_generation();
  // `spec.inherited` is the descriptor that PACELINE_SECRET_FD names. Error(kSystem).
  Process start(int local_rank, ProcessSpec spec);
  // The live seeds, which the clean-up after ranks must spare.
  std::vector<pid_t> pids();

 private:
  struct Seed {
    Fd socket;
    FileVersion program;      // the file that was executed ...
    Environment environment;  // ... with these variables
    Process process;          // the seed, once it is ready
  };

  Process execute(Seed& seed, ProcessSpec spec);
  struct Growth {
    std::optional<Process> process;
    std::optional<std::string> refusal;  // why a seed that was ready is not used
  };
  Growth grow(Seed& seed, const ProcessSpec& spec);
  void look_for(Seed& seed);
  void end(Seed& seed);

  const std::string program_;
  const bool enabled_;
  const std::function<void(const std::string&)> say_;
  const int num_inherited_;  // descriptors that every rank gets from this process
  Deadline patience_ = Deadline::after(std::chrono::nanoseconds(0));
  std::vector<Seed> seeds_;  // by local rank
};

// The variables to set (a value) or to remove (nothing) that turn `before` into `after`; nothing
// when the two differ in other variables than rule 3 allows.
using VariableChanges = std::map<std::string, std::optional<std::string>>;
std::optional<VariableChanges> changes_of_place(const Environment& before,
                                                const Environment& after);

}  // namespace paceline::launcher
