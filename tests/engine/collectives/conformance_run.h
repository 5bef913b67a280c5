#pragma once

#include <string>

namespace paceline::conformance {

// Runs the suite as one rank of the job that the launcher has started; returns the program's exit
// code. Requires: GoogleTest has its arguments, and PACELINE_BACKEND is set. A group of an
// unexpected size or backend is a failure.
int run_rank(const std::string& backend, int world_size);

}  // namespace paceline::conformance
