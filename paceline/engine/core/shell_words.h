#pragma once

// Words as a POSIX shell takes them: for commands that a shell of another machine will read, and
// for options that hold a command. Pure.

#include <string>
#include <string_view>
#include <vector>

namespace paceline {

// One word that a POSIX shell reads back as exactly `word`, whatever it holds.
std::string shell_quoted(std::string_view word);

// "ssh -o 'A B'" is {ssh, -o, A B}. Quotes and backslashes mean what they mean in a shell; nothing
// is expanded, so whatever would expand or start something else ($ ` ; | & < > ( ) outside of
// quotes) is Error(kInvalid), as is a quote without its end. `what` names the option in the
// message.
std::vector<std::string> split_shell_words(const std::string& text, const std::string& what);

}  // namespace paceline
