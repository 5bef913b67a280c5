#pragma once

// Turns what a command throws into a message and an exit code.

#include <functional>
#include <string>

namespace paceline::apps {

// Runs `command`; `who` stands before the message.
int guarded(const std::string& who, const std::function<int()>& command);

}  // namespace paceline::apps
