#pragma once

// Default options in a file, so that they need not be typed: paceline.toml in the working
// directory, if it exists, or the file of --config. A strict part of TOML:
//
//   [run]                      # the command
//   nproc-per-node = 4         # its options, without dashes in front
//   log-dir = "logs"
//   all-ranks = true
//
// The command line wins, then variables, then the file. An option that does not exist is an error,
// as is anything that is not such a line.

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "apps/cli/command_line.h"

namespace paceline::apps {

struct FlagFileEntry {
  std::string command, key, value;
  bool is_flag = false;  // true or false
  int line = 0;
  bool operator==(const FlagFileEntry&) const = default;
};

// The lines of such a file. UsageError: "PATH, line 3: ...". Pure.
std::vector<FlagFileEntry> parse_flag_file(const std::string& text, const std::string& path);

// "paceline.toml" if it exists and would be read, else "".
std::string usual_flag_file();

// Adds the defaults of `command` that --config or paceline.toml gives to `line`; none for --help.
// A file that another user could have written is not read, because it can name programs to start:
// for paceline.toml that is a warning, for a file that was named an error. Throws UsageError.
void read_flag_file(const CLI::App& app, const std::string& command, CommandLine& line);

}  // namespace paceline::apps
