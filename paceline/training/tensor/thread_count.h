#pragma once

// With how many threads LibTorch computes on this rank. The bits of its sums depend on that.
//
// Thread safety: none; from the thread that computes.

namespace paceline {

// Sets the intra-op threads of LibTorch and of OpenBLAS, which has a pool of its own. 0: what the
// launcher's OMP_NUM_THREADS says, otherwise LibTorch's default. Returns the number in effect.
int set_thread_count(int num_threads);

// Settles the number for logical shards, whose bits are to be the same for every number of ranks: 1
// thread, unless a number was chosen by set_thread_count(), OMP_NUM_THREADS or --threads-per-rank.
// Cores that a launcher divided among its ranks, and all that there are, are no choice. Returns the
// number in effect.
int settle_thread_count();

}  // namespace paceline
