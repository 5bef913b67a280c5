#pragma once

#include <string>

namespace paceline::conformance {

// Runs the suite as one rank of the job that the launcher has started; what the program returns.
// Requires: GoogleTest has its arguments, and PACELINE_BACKEND is set. A group of another size or
// backend than expected is a failure.
int run_rank(const std::string& backend, int world_size);

}  // namespace paceline::conformance
