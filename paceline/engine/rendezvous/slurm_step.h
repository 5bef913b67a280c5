#pragma once

// How SLURM has started this process.

#include "paceline/engine/rendezvous/launch_environment.h"

namespace paceline {

// Whether it is a task of a step that a user's srun made. SLURM also makes steps by itself, for the
// shell of salloc (LaunchParameters=use_interactive_step) and for a batch script: false in those.
bool in_step_of_srun(const GetVariable& variable);

}  // namespace paceline
