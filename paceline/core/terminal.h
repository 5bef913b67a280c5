#pragma once

// Whether a line may be written over itself, or only plain lines.

namespace paceline {

// True when `fd` is the terminal that this process was started from and TERM names one that knows
// escape codes. Open MPI's mpirun gives its ranks a terminal of its own making, whatever its output
// goes to: that is not the terminal they were started from.
bool can_draw_on(int fd);

}  // namespace paceline
