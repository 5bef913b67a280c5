#pragma once

// The launcher's half of the fork server (engine/rendezvous/fork_server.h): starts ranks, and those
// of later generations from the seeds that the earlier ones left, where there is one that fits:
//
//   - it is ready, and answers within 0.2 s: a seed that is gone, stopped or late is ended;
//   - the program's file is the one that was executed, and its libraries those that it loaded;
//   - the variables that differ from those it was executed with only tell a rank's place.
//
// Otherwise the program is executed, as at the first start. Seeds are children of this process and
// end with this object.
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
  // Of ranks that execute `program`. With `enabled` false every start is an execution. `say` hears
  // of seeds that could not be used although they were ready.
  RankSeeds(std::string program, bool enabled, std::function<void(const std::string&)> say);
  RankSeeds(const RankSeeds&) = delete;
  RankSeeds& operator=(const RankSeeds&) = delete;
  ~RankSeeds();

  // All seeds of a generation together hold its start up for one second at most.
  void begin_generation();
  // `spec.inherited` is the descriptor that PACELINE_SECRET_FD names. Error(kSystem).
  Process start(int local_rank, ProcessSpec spec);
  // Those that live, for who ends what ranks have left.
  std::vector<pid_t> pids();

 private:
  struct Seed {
    Fd socket;
    FileVersion program;      // that was executed
    Environment environment;  // with these variables
    Process process;          // once it is ready
  };

  Process execute(Seed& seed, ProcessSpec spec);
  struct Growth {
    std::optional<Process> process;
    std::optional<std::string> refusal;  // why not, where a seed was ready
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

// What must be set (a value) or removed (nothing) to make `after` of `before`; nothing when they
// differ in variables that a library may have read while it was loaded: all but those that tell a
// rank's place and Paceline's own.
using VariableChanges = std::map<std::string, std::optional<std::string>>;
std::optional<VariableChanges> changes_of_place(const Environment& before,
                                                const Environment& after);

}  // namespace paceline::launcher
