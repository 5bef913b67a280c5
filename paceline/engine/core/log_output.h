#pragma once

// Selects where the log (log.h) is written. Thread safety: see write_to().

namespace paceline::log {

// Later lines are written to `fd`, which must stay open until the next call; STDERR_FILENO restores
// the initial output, stderr. A line for which a non-blocking descriptor has no room is lost.
// Requires: no other thread writes to the log during the call.
void write_to(int fd);

}  // namespace paceline::log
