#pragma once

// SLURM's variables: its short notation for lists of nodes and tasks, and whether this process is a
// task of `srun`. Parsing is strict. Thread safety: pure functions.

#include <optional>
#include <string>
#include <vector>

#include "paceline/engine/rendezvous/launch_environment.h"

namespace paceline {

// "n[1-3,07],m" is n1, n2, n3, n07, m. Returns nullopt when the text has another form or names more
// than 65,536 nodes.
std::optional<std::vector<std::string>> expand_node_list(const std::string& text);

// "2(x3),1" is 2, 2, 2, 1. Returns nullopt when the text has another form.
std::optional<std::vector<int>> expand_task_counts(const std::string& text);

// Whether this process is a task of a step that a user's srun made. SLURM also makes steps by
// itself, for the shell of salloc (LaunchParameters=use_interactive_step) and for a batch script;
// in those the result is false.
bool in_step_of_srun(const GetVariable& variable);

}  // namespace paceline
