#pragma once

// A pipelined chain: the root sends the buffer in chunks to the next rank, which passes each on as
// soon as it has it. With c chunks of n/c bytes, n/c (p - 2 + c) byte times: for large n nearly the
// time of one transfer, however many ranks; and ranks of one host stand beside each other in the
// chain, so that each byte enters a host once.

#include "paceline/engine/collectives/algorithms/schedule.h"

namespace paceline {

// Broadcast. Pure. Requires: chunk > 0.
Schedule build_chain(const ScheduleSpec& spec);

}  // namespace paceline
