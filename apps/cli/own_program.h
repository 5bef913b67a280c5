#pragma once

// The version of this command, and the path and working directory of its process.
//
// Thread safety: pure.

#include <string>

namespace paceline::apps {

// "paceline 0.1.0 (GCC 12.2.0, Release, without LibTorch)"
std::string version_text();

// "0.1.0"
std::string version_number();

bool built_with_libtorch();
// Whether programs with tensors have the backend c10d, the Gloo that LibTorch carries.
bool built_with_c10d_gloo();

// The path of the program that this process runs.
std::string own_program();

// The folder of the contestants of `paceline bench`: ../libexec/paceline, seen from this program's.
std::string contestants_folder();

// Error(kSystem) when this process's working directory was removed: paths cannot be made absolute
// then, and ranks would not find theirs.
void require_working_directory();

}  // namespace paceline::apps
