#pragma once

// Settings for LibTorch's computations on this rank: mixed precision, and the number of threads.

#include <c10/core/ScalarType.h>

namespace paceline {

// Mixed precision on the CPU, like torch.autocast("cpu"): while the object lives, operators of this
// thread that are safe and fast in 16 bits (matrix products, convolutions) compute in 16 bits, and
// operators that need float32 get float32. Parameters stay float32.
//
//   at::Tensor loss;
//   { const Autocast autocast(at::kBFloat16); loss = loss_of(model.forward(batch)); }
//   loss.backward();  // outside, in the types of the forward pass
//
// The 16-bit copy of a parameter is made once and kept until the outermost object ends.
//
// Thread safety: the object belongs to the thread that made it; nested objects must be destroyed in
// reverse order.
class Autocast {
 public:
  // `enabled`: false switches to float32 within another Autocast. Error(kUnsupported) for types
  // other than bfloat16 and float16, and for float16 before LibTorch 2.4, whose operators do not
  // support it.
  explicit Autocast(at::ScalarType type = at::kBFloat16, bool enabled = true);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  const bool was_enabled_;
  const at::ScalarType type_before_;
};

// Sets the number of LibTorch's intra-op threads. 0: keeps the current number, which is at first
// OMP_NUM_THREADS (which the launcher sets) or LibTorch's default. OpenBLAS gets the same number if
// it uses OpenMP, otherwise 1, because its own pool would compete for the cores. Returns LibTorch's
// number; the bits of its sums depend on that number. Thread safety: none; call it from the thread
// that computes.
int set_thread_count(int num_threads);

}  // namespace paceline

namespace paceline::detail {

// Sets the number of threads for logical shards, whose results must have the same bits for every
// number of ranks. It is 1, unless a number was chosen with set_thread_count(), OMP_NUM_THREADS or
// --threads-per-rank. A number that was only derived from the cores (LibTorch's default, the
// launcher's share) does not count as chosen. Returns the number in effect. Thread safety: none;
// call it from the thread that computes.
int settle_thread_count();

}  // namespace paceline::detail
