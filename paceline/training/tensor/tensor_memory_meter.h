#pragma once

// Measures the memory of LibTorch's tensors on the CPU.
//
// Thread safety: the functions may be called from any thread.

#include <cstdint>

namespace paceline {

// Measures the memory of the CPU tensors that this process makes while the meter lives: the bytes
// that a pass keeps, and its peak.
//
//   const TensorMemoryMeter meter;
//   const at::Tensor loss = model.forward(x);
//   meter.bytes();   // kept for the backward pass
//
// Counts every storage that LibTorch allocates, in any thread. Tensors made before the meter do not
// count, even when they are freed. Cost: a lock and a map entry for each tensor.
//
// Thread safety: only one meter may exist in a process at a time; any thread may call its
// functions.
class TensorMemoryMeter {
 public:
  // Error(kInvalid) while another meter lives.
  TensorMemoryMeter();
  ~TensorMemoryMeter();
  TensorMemoryMeter(const TensorMemoryMeter&) = delete;
  TensorMemoryMeter& operator=(const TensorMemoryMeter&) = delete;

  // The bytes of the counted tensors that are alive now.
  std::int64_t bytes() const;
  // The largest number of bytes at once since the meter was made, or since begin_peak().
  std::int64_t peak() const;
  void begin_peak();
};

}  // namespace paceline
