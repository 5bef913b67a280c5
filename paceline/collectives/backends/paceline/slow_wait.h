#pragma once

// What is said of a collective that waits too long: a warning after 10 s, an error at the deadline.
// Both name the ranks that are missing.

#include <string>

#include "paceline/collectives/backend.h"
#include "paceline/core/deadline.h"
#include "paceline/transport/mesh.h"

namespace paceline {

// Error(kTimeout) with rank, operation, sequence number, elapsed time, `missing` and what the
// flight records tell.
Error slow_wait_error(const Mesh& mesh, const Fingerprint& operation, const WaitOptions& wait,
                      Deadline::Clock::time_point begin, const std::string& missing);
// Logs a warning when the wait has lasted 10 s; true when it did.
bool warn_of_slow_wait(const Fingerprint& operation, Deadline::Clock::time_point begin,
                       const std::string& missing);

}  // namespace paceline
