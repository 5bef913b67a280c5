#pragma once

// Direct algorithms for ranks that map each other's memory: the rank that needs a range reads it
// where it lies, or the rank that has it writes it where it goes.
//
// *In place*: a rank reads the inputs of others and writes their outputs. Results of a reduce go
// straight to the ranks that get them, and so does a block of an all_gather or all_to_all, because
// a rank then reads later what it has just written itself. A rank reads its part of a gather,
// scatter or broadcast; the end of a large broadcast is written by the root meanwhile (spec.chunk).
//
// *Staged*: for buffers that others cannot read. A rank copies what others need into its scratch;
// they meet; every rank reads from there. Results that others fetch lie in the scratch of the rank
// that made them, at their offset in the output. Block b of an input lies b * spec.count elements
// into the scratch.
//
// Rules (tests/engine/collectives/in_shared_memory_test.cpp, for world sizes 1 to 9): what a rank
// writes between two meetings no other rank reads or writes meanwhile; the sums have the promised
// bits; a staged schedule meets the same number of times on every rank, and before the first
// meeting it touches this rank's memory alone. All ranks have met before an in-place schedule
// begins, and meet again after it.

#include "paceline/engine/collectives/algorithms/schedule.h"

namespace paceline {

// Every operation but send and receive. Pure. Requires: 0 <= rank, root < world_size.
//
// spec.chunk: of a broadcast, how many elements the others read; the root writes the rest.
Schedule build_in_place(const ScheduleSpec& spec);
Schedule build_staged(const ScheduleSpec& spec);
// all_reduce: every rank reduces everything itself, one meeting less.
Schedule build_staged_one_shot(const ScheduleSpec& spec);

}  // namespace paceline
