#pragma once

// Options of `paceline run` that were typed behind the program. They belong to the program, which
// may have options of these names, so they are passed on and nothing is refused. But where the job
// then has one rank for want of them, or fails, a note says where they would have counted.

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "apps/command_line.h"

namespace paceline::apps {

// Words among the program's arguments, up to "--", that are options of `app` which nothing else has
// set. Requires: take_options() took `line`.
std::vector<std::string> options_behind(const CLI::App& app, const CommandLine& line);

// The note before the start about those that would have made more ranks, or "".
std::string note_on_ranks(const std::vector<std::string>& behind, const CommandLine& line);

// The note after a failure with this exit code, or "".
std::string note_on_failure(const std::vector<std::string>& behind, const CommandLine& line,
                            int exit_code);

}  // namespace paceline::apps
