#pragma once

// Signals that whoever started the command wanted to be ignored (nohup, the background of a
// script). A library may put a handler over that before main(): UCX, which an MPI may be linked to,
// does so with SIGHUP.

namespace paceline::apps {

// Ignores again what was ignored when the process began. Call before the first thread.
void restore_ignored_signals();

}  // namespace paceline::apps
