#pragma once

// Whether a line may be written over itself, or only plain lines.

namespace paceline {

// True when `fd` is the terminal that this process was started from and TERM names one that knows
// escape codes. paceline run and Open MPI's mpirun give their ranks a terminal of their own making,
// whatever their output goes to: that is not the terminal they were started from.
bool can_draw_on(int fd);

}  // namespace paceline
