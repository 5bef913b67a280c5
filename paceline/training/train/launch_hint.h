#pragma once

// How a user would call the launcher, for hints.

#include <string>

namespace paceline::train {

// `paceline` where the shell finds it; otherwise the one that was installed or built with this
// program, quoted for a shell.
std::string launcher_command();

}  // namespace paceline::train
