#pragma once

// Options of `paceline run` that were typed behind the program. They belong to the program, which
// may have options of these names, so they are passed on and nothing is refused. But where the job
// then has one rank for want of them, or fails, a note says where they would have counted.

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "apps/cli/command_line.h"

namespace paceline::apps {

// Words among the program's arguments, up to "--", that are options of `app` which nothing else has
// set. Requires: take_options() took `line`.
std::vector<std::string> options_behind(const CLI::App& app, const CommandLine& line);

// The note before the start about those that would have made more ranks, or "".
std::string note_on_ranks(const std::vector<std::string>& behind, const CommandLine& line);

// The note after a failure with this exit code, or "".
std::string note_on_failure(const std::vector<std::string>& behind, const CommandLine& line,
                            int exit_code);

// Variables that look like options of `paceline run` (PET_NPROC_PER_NODE is --nproc-per-node) or
// like Paceline's own (PACELINE_TIMEOUT) and are none: a mistyped one would be ignored in silence.

// A sentence for each variable PET_... of this process that nothing heeds: torchrun's that have no
// counterpart here, and those that are an option neither of `app` nor of `paceline submit`, with
// the nearest one that is.
std::vector<std::string> variables_without_effect(const CLI::App& app);

// Every variable PACELINE_... that the engine or the command reads or sets; a test compares them
// with the sources.
const std::vector<std::string>& own_variables();

// A sentence for each variable PACELINE_... of this process that is none of them.
std::vector<std::string> unknown_own_variables();

}  // namespace paceline::apps
