#pragma once

// How SLURM has started this process.

#include "paceline/rendezvous/launch_environment.h"

namespace paceline {

// As a task of a step that a user's srun made. Not so in the steps that SLURM makes by itself: the
// shell of salloc where LaunchParameters=use_interactive_step, a batch script.
bool in_step_of_srun(const GetVariable& variable);

}  // namespace paceline
