#pragma once

// Default options in a file, so that they need not be typed: paceline.toml in the working
// directory, if it exists, or the file of --config. The format is a strict subset of TOML:
//
//   [run]                      # the command
//   nproc-per-node = 4         # its options, without the leading dashes
//   log-dir = "logs"
//   all-ranks = true
//
// The command line has precedence over variables, and variables over the file. An option that does
// not exist is an error, and so is any line of another form.

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "apps/cli/command_line.h"

namespace paceline::apps {

struct FlagFileEntry {
  std::string command, key, value;
  bool is_flag = false;  // the value is true or false, without quotes
  int line = 0;
  bool operator==(const FlagFileEntry&) const = default;
};

// Returns the entries of such a file. Throws UsageError: "PATH, line 3: ...". Pure.
std::vector<FlagFileEntry> parse_flag_file(const std::string& text, const std::string& path);

// Returns "paceline.toml" if that file exists and may be read, otherwise "".
std::string usual_flag_file();

// Adds to `line` the defaults for `command` from the file of --config, or from paceline.toml; adds
// none if --help was typed. A file that belongs neither to this user nor to root, or to which every
// user may write, is not read, because it can name programs to start. Such a paceline.toml causes a
// warning, and such a file of --config an error. Throws UsageError.
void read_flag_file(const CLI::App& app, const std::string& command, CommandLine& line);

}  // namespace paceline::apps
