#pragma once

// Direct algorithms for ranks that map each other's memory: the rank that needs a range reads it in
// the memory of the rank that has it, or the rank that has the range writes it to its destination.
//
// *In place*: a rank reads the inputs of its peers and writes their outputs. In a reduce, a rank
// writes its results directly to the ranks that get them. In an all_gather or all_to_all, a rank
// writes its blocks to its peers, so it reads only its own input, which its program has usually
// just written. In a gather, scatter or broadcast, each rank reads its part; in a large broadcast
// each peer reads the first spec.chunk elements, and the root writes the others to every peer.
//
// *Staged*: for buffers that other ranks cannot read. Every rank copies the elements that its peers
// need into its own scratch; the ranks meet; then each rank reads its peers' scratch. A result that
// peers fetch lies in the scratch of the rank that computed it, at its offset in the output. Block
// b of an input begins b * spec.count elements into the scratch.
//
// Rules (tests/engine/collectives/in_shared_memory_test.cpp checks them for world sizes 1 to 9):
// between two meetings, no rank reads or writes memory that another rank writes; the sums have the
// bits that kernels/reduce.h defines; a staged schedule meets the same number of times on every
// rank, and before the first meeting it touches only this rank's memory. All ranks have met before
// an in-place schedule begins, and meet again after it.

#include "paceline/engine/collectives/algorithms/schedule.h"

namespace paceline {

// Builds the schedule of any operation except send and receive. Pure. Requires: 0 <= rank, root <
// world_size.
//
// In an in-place broadcast, spec.chunk is the number of elements that each other rank reads; the
// root writes the remaining elements to all ranks.
Schedule build_in_place(const ScheduleSpec& spec);
Schedule build_staged(const ScheduleSpec& spec);
// An all_reduce in which every rank reduces the whole buffer itself, so one meeting suffices.
Schedule build_staged_one_shot(const ScheduleSpec& spec);

}  // namespace paceline
