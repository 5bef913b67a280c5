#pragma once

// Splits `[options] PROGRAM ARGS` before CLI11 sees it. CLI11 would unpack an argument like "[a,b]"
// and take options that stand behind the program for its own; the program's arguments must arrive
// as they were typed. Here also: underscores for dashes, unknown options with a suggestion, missing
// and empty values.

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace paceline::apps {

struct CommandLine {
  std::vector<std::string> options;  // "--name=value" or "--flag", with dashes
  std::vector<std::string> program;  // the program and its arguments, untouched

  // True when the option was typed, so that its value did not come from the environment.
  bool has(const std::string& name) const;
};

// Throws UsageError.
CommandLine split_command_line(const CLI::App& app, const std::vector<std::string>& arguments);

// The same for a command whose words are its own: options may stand before and behind the first.
// Throws UsageError.
CommandLine split_around_word(const CLI::App& app, const std::vector<std::string>& arguments);

// Lets `app` take the options, and the variables of those that were not typed. False when --help
// was among them. Throws UsageError.
bool take_options(CLI::App& app, const CommandLine& line);

}  // namespace paceline::apps
