#pragma once

// Splits `[options] PROGRAM ARGS` before CLI11 sees it. CLI11 would unpack an argument like "[a,b]"
// and take options behind the program for its own, but the program's arguments must arrive as they
// were typed. It also takes underscores for dashes, and refuses unknown options, with a suggestion,
// and missing or empty values.

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace paceline::apps {

struct CommandLine {
  std::vector<std::string> options;  // "--name=value", "--flag" or "--flag=false", with dashes
  std::vector<std::string> program;  // the program and its arguments, untouched

  // A value that counts when neither the command line nor a variable sets the option.
  struct Default {
    std::string name;  // "--name"
    std::string value;
    bool is_flag = false;  // `value` is true or false
    std::string source;    // "file paceline.toml, line 3", for messages
  };
  std::vector<Default> defaults;

  // Adds an option, replacing an earlier one of the same name: the last one wins, as with torchrun,
  // so that scripts can put their defaults in front.
  void add(const std::string& option);
  // True when the option was typed, so that its value did not come from the environment.
  bool has(const std::string& name) const;
};

// "--a-b" of "--a_b=c", "-t" of "-t3".
std::string option_name(const std::string& argument);

// Throws UsageError.
CommandLine split_command_line(const CLI::App& app, const std::vector<std::string>& arguments);

// The same for a command whose words are its own: options may stand before, between and behind
// them. Throws UsageError.
CommandLine split_around_words(const CLI::App& app, const std::vector<std::string>& arguments);

// Lets `app` take the options, variables for those that were not typed, and defaults for the rest.
// False when --help was among them. Throws UsageError.
bool take_options(CLI::App& app, const CommandLine& line);

// Where the value of `option` comes from: "flag --name", "variable PET_NAME", a default's source,
// or "default".
std::string origin_of(const CLI::Option& option, const CommandLine& line);

}  // namespace paceline::apps
