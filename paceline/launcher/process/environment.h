#pragma once

// The variables of a process, as a value: those that this one inherited, and what others are
// started with.

#include <map>
#include <string>

namespace paceline::launcher {

using Environment = std::map<std::string, std::string>;

// This process's own variables.
Environment inherited_environment();

// The variables that `worker` adds to or changes in `inherited`.
Environment added_variables(const Environment& worker, const Environment& inherited);

}  // namespace paceline::launcher
