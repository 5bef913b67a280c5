#pragma once

// Finds options and variables that look as if they were meant for `paceline run` but have no
// effect.
//
// Options after the program belong to the program, which may have options of the same names, so
// they are passed on and never refused. But if the job fails, or has only one rank because
// --nproc-per-node came after the program, a note tells the user to put the options before the
// program. Some variables have an effect: PET_NPROC_PER_NODE sets --nproc-per-node, and the engine
// reads PACELINE_TIMEOUT. A mistyped variable would have no effect, so a warning names it.

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "apps/cli/command_line.h"

namespace paceline::apps {

// The words among the program's arguments, up to "--", that name long options of `app` whose values
// are the defaults. Requires: take_options() has been called with `line`.
std::vector<std::string> options_behind(const CLI::App& app, const CommandLine& line);

// The note, printed before the start, about options that would have started more ranks; "" if there
// are none.
std::string note_on_ranks(const std::vector<std::string>& behind, const CommandLine& line);

// The note to print after a failure with this exit code, or "".
std::string note_on_failure(const std::vector<std::string>& behind, const CommandLine& line,
                            int exit_code);

// A sentence for each variable PET_... of this process that has no effect: torchrun's variables
// without a counterpart here, and variables that are not an option of `app` or of `paceline
// submit`. The sentence suggests the most similar name.
std::vector<std::string> variables_without_effect(const CLI::App& app);

// Every variable PACELINE_... that the engine or the command reads or sets; a test compares them
// with the sources.
const std::vector<std::string>& own_variables();

// A sentence for each variable PACELINE_... of this process that is not in own_variables().
std::vector<std::string> unknown_own_variables();

}  // namespace paceline::apps
