#pragma once

// Where this command lies, and what was installed with it. Thread safety: pure.

#include <string>

namespace paceline::apps {

// The path of the program that runs now.
std::string own_program();

// The folder of what `paceline bench` compares: ../libexec/paceline beside this program's.
std::string contestants_folder();

}  // namespace paceline::apps
