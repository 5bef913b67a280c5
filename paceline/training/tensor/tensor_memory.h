#pragma once

// Tensors that collectives on one host read and write in place, wherever they come from.
//
// While an object of this class lives, LibTorch allocates its large CPU tensors of this process,
// whatever makes them, in memory that the group's ranks on this host share. An all-reduce of a
// gradient then needs no copy into a bucket, and the stages of a pipeline read each other's results
// where they are. Freed memory is kept and used again, which also saves the price of fresh pages.
// Tensors that live longer than the object keep their memory.
//
// A forked child must not touch tensors that its parent made meanwhile.
//
// Thread safety: one object at a time in a process; tensors may be made in any thread.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "paceline/engine/collectives/memory/symmetric_arena.h"

namespace paceline {

class SymmetricTensors {
 public:
  // Tensors below this size stay where they were.
  static constexpr std::size_t kLeastBytes = 256 << 10;

  // Collective. Does nothing, on every rank, where the group's ranks share no memory, or, with a
  // warning, where one of them has not got the address space. `bytes` a rank; 0: its share of the
  // machine's memory. Tensors beyond it are allocated as usual.
  explicit SymmetricTensors(ProcessGroup& group, std::size_t bytes = 0);
  ~SymmetricTensors();
  SymmetricTensors(const SymmetricTensors&) = delete;
  SymmetricTensors& operator=(const SymmetricTensors&) = delete;

  // Gives the pages of freed tensors back to the system: after many were freed that do not come
  // again. Any thread; does nothing where tensors are allocated as usual.
  static void release_unused();

 private:
  std::shared_ptr<SymmetricArena>
      arena_;  // owners: this, and the allocator while tensors lie in it
};

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
