#pragma once

// Variables that look like options of `paceline run` (PET_NPROC_PER_NODE is --nproc-per-node) or
// like Paceline's own (PACELINE_TIMEOUT) and are none: a mistyped one would be ignored in silence.

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace paceline::apps {

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
