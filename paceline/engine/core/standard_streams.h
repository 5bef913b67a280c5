#pragma once

// A program may be started with standard streams closed (`>&-`). What it opens next would get their
// numbers, and a socket with the number of stdout would get everything that is printed.

namespace paceline {

// Holds the numbers of the standard streams that are closed: reading finds the end, and writing
// fails as before (EBADF), so that lost output is noticed. To be called before anything is opened;
// later calls do nothing.
void hold_standard_streams() noexcept;

}  // namespace paceline
