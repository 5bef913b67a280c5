#pragma once

#include <string>

namespace paceline::apps {

// "paceline 0.1.0 (GCC 12.2.0, Release, without LibTorch)"
std::string version_text();

// "0.1.0"
std::string version_number();

bool built_with_libtorch();

}  // namespace paceline::apps
