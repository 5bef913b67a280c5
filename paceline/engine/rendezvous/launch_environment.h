#pragma once

// Who am I? The place of this process in its job, as the launcher's environment variables tell it.
// The order in which launchers are looked for, and the variables of each, stand in
// docs/launchers.md.

#include <functional>
#include <optional>
#include <string>

namespace paceline {

struct LaunchEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;        // among the ranks of this host
  int local_world_size = 1;  // ranks of this host; 1 when the launcher does not say
  int restart_count = 0;     // how often the launcher has restarted the job: the first generation
  std::string launcher =
      "none";  // "paceline", "torchrun", "env", "openmpi", "slurm", "pmi", "none"
  // Of `paceline run --roles` and torchrun's --role; empty: none.
  std::string role;
  int role_rank = 0;           // its number among the ranks of that role
  bool loaded_before = false;  // forked from a process that an earlier generation had loaded
  std::string job_id;  // unique among the jobs of this user on this host; empty when unknown
};

// Reads a variable; nothing when it is unset. Tests pass their own. The environment's: an empty
// PACELINE_ variable is unset as well.
using GetVariable = std::function<std::optional<std::string>(const std::string&)>;
GetVariable process_environment();

// Error(kInvalid) when a variable is missing, out of range or contradicts another; the message
// names the variable, its value and the corrected command. Without any launcher: a group of one.
LaunchEnvironment detect_launch_environment(const GetVariable& variable = process_environment());

}  // namespace paceline
