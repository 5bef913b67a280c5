#pragma once

#include <string>

namespace paceline::apps {

// "paceline 0.1.0 (GCC 12.2.0, Release, without LibTorch)"
std::string version_text();

// "0.1.0"
std::string version_number();

bool built_with_libtorch();
// Backend c10d, for programs with tensors: the Gloo that LibTorch carries.
bool built_with_c10d_gloo();

// Where this command lies, and what was installed with it. Thread safety: pure.

// The path of the program that runs now.
std::string own_program();

// The folder of what `paceline bench` compares: ../libexec/paceline beside this program's.
std::string contestants_folder();

// Error(kSystem) when this process's working directory was removed: paths cannot be made absolute
// then, and ranks would not find theirs.
void require_working_directory();

}  // namespace paceline::apps
