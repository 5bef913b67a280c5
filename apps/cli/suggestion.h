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

// The words by which other launchers, schedulers and tools call what our commands do, so that a
// user who comes from there is shown the right one.

// The command of `commands` that someone who typed `typed` means, by such a word or by a similar
// spelling; "" when none.
std::string command_meant_by(const std::string& typed, const std::vector<std::string>& commands);

}  // namespace paceline::apps
