#pragma once

// Mixed precision on the CPU, as torch.autocast("cpu"): while the object lives, the operators of
// this thread that are safe and fast in 16 bits (matrix products, convolutions) take and give them,
// and those that need float32 get it. Parameters stay float32.
//
//   at::Tensor loss;
//   { const Autocast autocast(at::kBFloat16); loss = loss_of(model.forward(batch)); }
//   loss.backward();  // outside, in the types of the forward pass
//
// A 16-bit copy of a parameter is kept until the outermost object ends, so that it is made once.
//
// Thread safety: it is the thread's; made and destroyed by the same one, innermost first.

#include <c10/core/ScalarType.h>

namespace paceline {

class Autocast {
 public:
  // `enabled`: false computes in float32 inside of another one. Error(kUnsupported) for types that
  // are not bfloat16 or float16, and for float16 before LibTorch 2.4, whose operators lack it.
  explicit Autocast(at::ScalarType type = at::kBFloat16, bool enabled = true);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  const bool was_enabled_;
  const at::ScalarType type_before_;
};

// With how many threads LibTorch computes on this rank. The bits of its sums depend on that.
//
// Thread safety: none; from the thread that computes.

// Sets the intra-op threads of LibTorch and of OpenBLAS, which has a pool of its own. 0: what the
// launcher's OMP_NUM_THREADS says, otherwise LibTorch's default. Returns the number in effect.
int set_thread_count(int num_threads);

// Settles the number for logical shards, whose bits are to be the same for every number of ranks: 1
// thread, unless a number was chosen by set_thread_count(), OMP_NUM_THREADS or --threads-per-rank.
// Cores that a launcher divided among its ranks, and all that there are, are no choice. Returns the
// number in effect.
int settle_thread_count();

}  // namespace paceline
