#pragma once

// "Did you mean ...?" for a mistyped option or command.

#include <string>
#include <vector>

namespace paceline::apps {

// The smallest number of single-character insertions, deletions, replacements and swaps of
// neighbours between two words.
int edit_distance(const std::string& a, const std::string& b);

// The word of `known` nearest to `typed`, or "" when none is near enough to be meant.
std::string nearest(const std::string& typed, const std::vector<std::string>& known);

// "; did you mean WORD?" with the nearest, or "".
std::string did_you_mean(const std::string& typed, const std::vector<std::string>& known);

}  // namespace paceline::apps
