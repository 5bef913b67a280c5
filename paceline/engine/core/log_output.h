#pragma once

// Where the log (log.h) is written. Thread safety: as for each function.

namespace paceline::log {

// From now on lines are written to `fd`, which must outlive this setting; STDERR_FILENO: to stderr,
// as at first. A line for which a non-blocking descriptor has no room is lost. Requires: no other
// thread writes to the log at this time.
void write_to(int fd);

}  // namespace paceline::log
