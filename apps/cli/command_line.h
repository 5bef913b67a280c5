#pragma once

// Splits `[options] PROGRAM ARGS` before CLI11 sees it. CLI11 would unpack an argument like "[a,b]"
// and treat options after the program as its own, but the program must get its arguments exactly as
// they were typed. This splitter also accepts underscores in place of dashes. It refuses unknown
// options, with a suggestion, and missing or empty values.

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace paceline::apps {

struct CommandLine {
  std::vector<std::string> options;  // "--name=value", "--flag" or "--flag=false", with dashes
  std::vector<std::string> program;  // the program and its arguments, untouched

  // A value that is used if neither the command line nor a variable sets the option.
  struct Default {
    std::string name;  // "--name"
    std::string value;
    bool is_flag = false;  // `value` is true or false
    std::string source;    // "file paceline.toml, line 3", for messages
  };
  std::vector<Default> defaults;

  // Adds an option and replaces an earlier one of the same name. As with torchrun the last one
  // wins, so that scripts can put their defaults first.
  void add(const std::string& option);
  // Whether the option was typed, so that its value does not come from a variable or a default.
  bool has(const std::string& name) const;
};

// The name of the option in an argument: "--a-b" for "--a_b=c", "-t" for "-t3".
std::string option_name(const std::string& argument);

// Whether the argument is -m or --module; the name of a Python module must follow.
bool names_module(const std::string& argument);

// Throws UsageError. For a command that starts ranks, `-m MODULE` begins the program.
CommandLine split_command_line(const CLI::App& app, const std::vector<std::string>& arguments);

// As above, for a command that takes words (positional arguments) instead of a program: options may
// be before, between and after the words. Throws UsageError.
CommandLine split_around_words(const CLI::App& app, const std::vector<std::string>& arguments);

// Passes the options to `app`. An option that was not typed gets its value from its variable, and
// without a variable from `line.defaults`. Returns false if --help was typed. Throws UsageError.
bool take_options(CLI::App& app, const CommandLine& line);

// The origin of the value of `option`: "flag --name", "variable PET_NAME", the source of a default,
// or "default".
std::string origin_of(const CLI::Option& option, const CommandLine& line);

}  // namespace paceline::apps
