#pragma once

// Reading a launcher's variables strictly: "1 ", "0x1", "" and numbers out of range are errors that
// name the variable and its value, because a rank that is guessed wrong hangs a whole job.

#include <optional>
#include <string>

#include "paceline/engine/rendezvous/launch_environment.h"

namespace paceline {

// The whole number from 0 to `greatest` in the variable; nothing when it is unset. Error(kInvalid)
// otherwise.
std::optional<int> read_number(const GetVariable& variable, const std::string& name,
                               int greatest = 2147483647);

// The variable, or Error(kInvalid) saying that it is missing and `why` it is needed.
std::string require_text(const GetVariable& variable, const std::string& name,
                         const std::string& why);

// How this process was called, for messages that show a corrected command.
std::string own_command();

}  // namespace paceline
