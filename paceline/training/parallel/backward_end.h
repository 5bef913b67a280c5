#pragma once

// Tells whether the calling thread is inside activation_checkpoint(), and queues functions for the
// end of the thread's outermost backward pass. The reducer needs both functions.
//
// Thread safety: each call concerns only the calling thread.

#include <functional>

namespace paceline {

// Whether this thread runs a part of activation_checkpoint(), for the first or the second time.
bool is_in_checkpoint();

// Queues `then`, to be called when the outermost backward pass of this thread has computed all
// gradients. Queued functions run in the order of the calls. Requires: a backward pass is running.
void at_end_of_backward(std::function<void()> then);

}  // namespace paceline
