#pragma once

// The version of this command, and the path and working directory of its process.
//
// Thread safety: the functions may be called from any thread.

#include <string>

namespace paceline::apps {

// For example "paceline 0.1.0 (commit 0fb02190abcd, GNU 12.2.0, Release, without LibTorch)". A "+"
// after the commit means that the sources differed from it. An unknown commit is left out.
std::string version_text();

// For example "0.1.0".
std::string version_number();

bool built_with_libtorch();
// Whether this build can use the backend c10d, LibTorch's own Gloo, for tensors.
bool built_with_c10d_gloo();

// The path of the program that this process runs.
std::string own_program();

// The folder with the contestants of `paceline bench`: ../libexec/paceline, relative to this
// program's folder.
std::string contestants_folder();

// Error(kSystem) if this process's working directory has been removed. Then paths cannot be made
// absolute, and ranks would have no working directory.
void require_working_directory();

}  // namespace paceline::apps
