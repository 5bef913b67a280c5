#pragma once

// How a request becomes a call.

#include <memory>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/rpc/caller.h"
#include "paceline/engine/rpc/calls.h"
#include "paceline/engine/rpc/references.h"

namespace paceline::rpc {

// Begins a call, and keeps the references in its request alive until the call has arrived.
PendingPointer begin_call(Caller& caller, ReferenceTable& references, const CallTarget& target,
                          detail::RequestMaker request, Deadline deadline);
// Like begin_call(), for a one-way message. The sender never learns when the message arrives, so it
// keeps the holds of its references for one lease. Waits until the deadline for objects that are
// being created.
void tell_call(Caller& caller, ReferenceTable& references, const CallTarget& target,
               detail::RequestMaker request, Deadline deadline);

}  // namespace paceline::rpc
