#pragma once

// The words by which other launchers, schedulers and tools call what our commands do, so that a
// user who comes from there is shown the right one.

#include <string>
#include <vector>

namespace paceline::apps {

// The command of `commands` that someone who typed `typed` means, by such a word or by a similar
// spelling; "" when none.
std::string command_meant_by(const std::string& typed, const std::vector<std::string>& commands);

}  // namespace paceline::apps
