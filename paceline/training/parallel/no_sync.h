#pragma once

// Backward passes without communication.
//
// Thread safety: none.

namespace paceline {

class GradientSync;

// While this object lives, gradients are not communicated: they accumulate locally, and the first
// backward pass after it averages the sum. Both the forward and the backward pass must run while it
// lives.
class NoSync {
 public:
  explicit NoSync(GradientSync& sync);
  ~NoSync();
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  GradientSync& sync_;
  const bool before_;
};

}  // namespace paceline
