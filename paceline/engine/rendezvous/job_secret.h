#pragma once

// The job's secret as the launcher or the user hands it over: an inherited descriptor or a private
// file. Never an environment variable with the secret itself, which every process of the user could
// read.

#include <optional>

#include "paceline/engine/core/secret.h"
#include "paceline/engine/rendezvous/launch_environment.h"

namespace paceline {

// From PACELINE_SECRET_FD (an inherited memory file, unless a wrapper has closed it; it is not
// passed on to programs started later), else PACELINE_SECRET_FILE (0600 or 0400, owned by this
// user), else nothing. Error(kInvalid) names the variable and what is wrong with it.
std::optional<Secret> find_job_secret(const GetVariable& variable);

}  // namespace paceline
