#pragma once

// A process on its way out breaks its connections before the kernel calls it ended. A process that
// notices may then be seen to end first, although it only followed.

#include "paceline/engine/core/deadline.h"
#include "paceline/launcher/process/process.h"

namespace paceline::launcher {

// True for a child, not waited for yet, that a signal has ended or is ending. Waits until the
// deadline for one that is on its way out; does not wait for any other.
bool died_of_signal(const Process& child, Deadline deadline);

}  // namespace paceline::launcher
