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

}  // namespace paceline::apps
