#pragma once

// Options and variables that look as if they were for `paceline run` but have no effect.
//
// Options behind the program belong to the program, which may have options of these names, so they
// are passed on and nothing is refused. But if the job then has one rank for want of them, or
// fails, a note says where they would have counted. Of variables, PET_NPROC_PER_NODE is
// --nproc-per-node and PACELINE_TIMEOUT the engine's; a mistyped one would be ignored in silence,
// so a warning names it.

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "apps/cli/command_line.h"

namespace paceline::apps {

// Words among the program's arguments, up to "--", that are options of `app` and set nowhere else.
// Requires: take_options() took `line`.
std::vector<std::string> options_behind(const CLI::App& app, const CommandLine& line);

// The note before the start about those that would have made more ranks, or "".
std::string note_on_ranks(const std::vector<std::string>& behind, const CommandLine& line);

// The note after a failure with this exit code, or "".
std::string note_on_failure(const std::vector<std::string>& behind, const CommandLine& line,
                            int exit_code);

// A sentence for each variable PET_... of this process without effect: torchrun's that have no
// counterpart here, and those that are an option neither of `app` nor of `paceline submit`, with
// the nearest one that is.
std::vector<std::string> variables_without_effect(const CLI::App& app);

// Every variable PACELINE_... that the engine or the command reads or sets; a test compares them
// with the sources.
const std::vector<std::string>& own_variables();

// A sentence for each variable PACELINE_... of this process that is not in own_variables().
std::vector<std::string> unknown_own_variables();

}  // namespace paceline::apps
