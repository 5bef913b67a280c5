#pragma once

// The number of threads of logical shards.

namespace paceline {

// Sets the number of threads for logical shards, whose results must have the same bits for every
// number of ranks. It is 1, unless a number was chosen with set_thread_count(), OMP_NUM_THREADS or
// --threads-per-rank. A number that was only derived from the cores (LibTorch's default, the
// launcher's share) does not count as chosen. Returns the number in effect. Thread safety: none;
// call it from the thread that computes.
int settle_thread_count();

}  // namespace paceline
