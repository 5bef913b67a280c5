#pragma once

// "Did you mean ...?" for a mistyped option or command.

#include <string>
#include <vector>

#include "paceline/engine/core/option_text.h"  // nearest()

namespace paceline::apps {

// "; did you mean WORD?" with the nearest, or "".
std::string did_you_mean(const std::string& typed, const std::vector<std::string>& known);

// The command of `commands` that someone who typed `typed` means, by a similar spelling or by the
// word that another launcher, scheduler or tool has for it; "" when none.
std::string command_meant_by(const std::string& typed, const std::vector<std::string>& commands);

}  // namespace paceline::apps
