#pragma once

// Direct algorithms: every range travels straight from the rank that has it to the rank that needs
// it.
//
// all_reduce is a direct reduce-scatter followed by a direct all-gather: the buffer is cut into one
// chunk per rank; each rank gets every rank's contribution to its chunk, reduces them in the fixed
// tree, and hands the result out. Cost for n bytes on p ranks: 2(p-1) messages and 2n(p-1)/p bytes
// sent per rank (the bandwidth bound; Patarasuk and Yuan, "Bandwidth optimal all-reduce
// algorithms", 2009), n/p x (p-1) combined per rank. Since a reduce sees all contributions at once,
// the order of the sum does not depend on the algorithm, the transport or the chunking.
//
// one_shot_all_reduce: every rank sends its whole buffer to every other and reduces all of them.
// p-1 messages, n(p-1) bytes: for small n.

#include "paceline/engine/collectives/algorithms/schedule.h"

namespace paceline {

// Every operation but send and receive. Pure. Requires: 0 <= rank, root < world_size.
Schedule build_direct(const ScheduleSpec& spec);
Schedule build_one_shot_all_reduce(const ScheduleSpec& spec);

// The elements [begin, end) of a buffer of `count` that `rank` reduces: equal chunks, rounded to
// whole cache lines of the widest type so that two ranks never write one line.
struct Chunk {
  std::size_t begin, end;
  std::size_t count() const { return end - begin; }
};
Chunk chunk_of(std::size_t count, int rank, int world_size);

}  // namespace paceline
