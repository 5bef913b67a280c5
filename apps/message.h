#pragma once

#include <cstdio>
#include <string>

namespace paceline::apps {

// A line to stderr. A stderr that is closed or full is not a reason to fail: fmt::print would
// throw.
inline void say(const std::string& line) { std::fputs((line + "\n").c_str(), stderr); }

}  // namespace paceline::apps
