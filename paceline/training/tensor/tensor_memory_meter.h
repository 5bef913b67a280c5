#pragma once

// How much memory the CPU tensors take that this process makes while a meter lives: for the
// memory that a pass keeps, and its peak.
//
//   const TensorMemoryMeter meter;
//   const at::Tensor loss = model.forward(x);
//   meter.bytes();   // of what waits for the backward pass
//
// Counts storage as LibTorch asks for it, from any thread. Tensors that were made before are not
// counted, nor when they are freed. Cost: a lock and an entry of a map for each tensor.
//
// Thread safety: one meter at a time in a process; its functions may be called in any thread.

#include <cstdint>

namespace paceline {

class TensorMemoryMeter {
 public:
  // Error(kInvalid) while another one lives.
  TensorMemoryMeter();
  ~TensorMemoryMeter();
  TensorMemoryMeter(const TensorMemoryMeter&) = delete;
  TensorMemoryMeter& operator=(const TensorMemoryMeter&) = delete;

  // Of the tensors that live now.
  std::int64_t bytes() const;
  // The most at once since the meter began, or since begin_peak().
  std::int64_t peak() const;
  void begin_peak();
};

}  // namespace paceline
