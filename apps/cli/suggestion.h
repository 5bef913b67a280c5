#pragma once

// Suggestions ("did you mean ...?") for a mistyped option or command.

#include <string>
#include <vector>

#include "paceline/engine/core/option_text.h"  // nearest()

namespace paceline::apps {

// "; did you mean WORD?" with the most similar known word; "" if none is similar.
std::string did_you_mean(const std::string& typed, const std::vector<std::string>& known);

// The command in `commands` that the user who typed `typed` probably meant: one with a similar
// spelling, or one for which another launcher, scheduler or tool uses that word. "" if there is
// none.
std::string command_meant_by(const std::string& typed, const std::vector<std::string>& commands);

}  // namespace paceline::apps
