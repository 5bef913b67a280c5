#pragma once

// The rank of this process in its job, and the job's secret, read from the launcher's environment
// variables. Numbers are read strictly: "1 ", "0x1", "" and those out of range are errors that name
// the variable and its value, because a wrong rank would hang the whole job. docs/launching.md
// lists the launchers in the order in which they are tried, with the variables of each. At the end
// are functions for SLURM's variables: its short notation for lists of nodes and tasks, and whether
// this process is a task of `srun`.
//
// Thread safety: any thread may call the functions while no thread changes the environment.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "paceline/engine/core/authentication.h"

namespace paceline {

struct LaunchEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;        // index among the ranks of this host
  int local_world_size = 1;  // ranks of this host; local_rank + 1 when the launcher does not set it
  int restart_count = 0;     // restarts of the job so far: the number of this generation
  std::string launcher =
      "none";  // "paceline", "torchrun", "env", "openmpi", "slurm", "pmi", "none"
  // The role from `paceline run --roles` or torchrun's --role; empty for none.
  std::string role;
  int role_rank = 0;           // index among the ranks of that role
  bool loaded_before = false;  // forked from a seed of an earlier generation
  std::string job_id;  // unique among the jobs of this user on this host; empty when unknown
};

// Reads a variable; nullopt when it is unset. Tests pass a function of their own.
// process_environment() reads the environment, where an empty PACELINE_ variable counts as unset.
using GetVariable = std::function<std::optional<std::string>(const std::string&)>;
GetVariable process_environment();

// Finds the launcher and this process's rank. Without a launcher, the result is a group of one.
// Throws Error(kInvalid) when a variable is missing, out of range or contradicts another; the
// message names the variable and its value and, where one exists, the corrected command.
LaunchEnvironment detect_launch_environment(const GetVariable& variable = process_environment());

// The whole number from 0 to `greatest` in a variable; nullopt when it is unset. Throws
// Error(kInvalid) for any other text.
std::optional<int> read_number(const GetVariable& variable, const std::string& name,
                               int greatest = 2147483647);

// The value of a variable. Throws Error(kInvalid), which says `why` the variable is needed, when it
// is unset or empty.
std::string require_text(const GetVariable& variable, const std::string& name,
                         const std::string& why);

// The command line of this process, for messages that show a corrected command.
std::string own_command();

// The job's secret. No variable holds the secret itself, because every process of the user could
// read it. It is read from PACELINE_SECRET_FD, a memory file that the rank inherited, unless a
// wrapper has closed that descriptor; otherwise from PACELINE_SECRET_FILE (closed to others, owned
// by this user). Programs that are started after the call do not inherit the descriptor. Returns
// nullopt when neither variable is set. Throws Error(kInvalid), which names the variable and the
// problem.
std::optional<Secret> find_job_secret(const GetVariable& variable);

// "n[1-3,07],m" is n1, n2, n3, n07, m. Returns nullopt when the text has another form or names more
// than 65,536 nodes.
std::optional<std::vector<std::string>> expand_node_list(const std::string& text);

// "2(x3),1" is 2, 2, 2, 1. Returns nullopt for another form, a count of 0, or over 65,536 nodes.
std::optional<std::vector<int>> expand_task_counts(const std::string& text);

// Whether this process is a task of a step that a user's srun made. SLURM also makes steps by
// itself, for the shell of salloc (LaunchParameters=use_interactive_step) and for a batch script;
// in those steps the result is false.
bool in_step_of_srun(const GetVariable& variable);

}  // namespace paceline
