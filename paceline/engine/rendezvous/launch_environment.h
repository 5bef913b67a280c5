#pragma once

// Who am I? The place of this process in its job, and the job's secret, as the launcher's
// environment variables tell them, read strictly: "1 ", "0x1", "" and numbers out of range are
// errors that name the variable and its value, because a rank that is guessed wrong hangs a whole
// job. The order in which launchers are looked for, and the variables of each, stand in
// docs/launchers.md.

#include <functional>
#include <optional>
#include <string>

#include "paceline/engine/core/authentication.h"

namespace paceline {

struct LaunchEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;        // among the ranks of this host
  int local_world_size = 1;  // ranks of this host; 1 when the launcher does not say
  int restart_count = 0;     // how often the launcher has restarted the job: the first generation
  std::string launcher =
      "none";  // "paceline", "torchrun", "env", "openmpi", "slurm", "pmi", "none"
  // The role by `paceline run --roles` or torchrun's --role; empty: none.
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

// The whole number from 0 to `greatest` in the variable; nothing when it is unset. Error(kInvalid)
// otherwise.
std::optional<int> read_number(const GetVariable& variable, const std::string& name,
                               int greatest = 2147483647);

// The variable, or Error(kInvalid) saying that it is missing and `why` it is needed.
std::string require_text(const GetVariable& variable, const std::string& name,
                         const std::string& why);

// How this process was called, for messages that show a corrected command.
std::string own_command();

// The job's secret. It is never in a variable itself, which every process of the user could read.
// From PACELINE_SECRET_FD (an inherited memory file, unless a wrapper has closed it; it is not
// passed on to programs started later), else PACELINE_SECRET_FILE (0600 or 0400, owned by this
// user), else nothing. Error(kInvalid) names the variable and what is wrong with it.
std::optional<Secret> find_job_secret(const GetVariable& variable);

}  // namespace paceline
