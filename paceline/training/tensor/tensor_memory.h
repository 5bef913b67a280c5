#pragma once

// Where LibTorch's CPU tensors lie, and how much memory they take.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "paceline/engine/collectives/memory/symmetric_arena.h"

namespace paceline {

// While an object of this class lives, LibTorch allocates the large CPU tensors of this process,
// whichever code makes them, in memory that the group's ranks on this host share. An all-reduce of
// a gradient then needs no copy into a bucket, and the stages of a pipeline read each other's
// results in place. Freed memory is kept and used again, which also saves the cost of fresh pages.
// Tensors that live longer than the object keep their memory.
//
// A forked child must not touch tensors that its parent made while the object lived.
//
// Thread safety: one object at a time in a process; tensors may be made in any thread.
class SymmetricTensors {
 public:
  // Smaller tensors are allocated as usual.
  static constexpr std::size_t kLeastBytes = 256 << 10;

  // Collective. Does nothing, on every rank, if the group's ranks share no memory, or, with a
  // warning, if one of them lacks the address space. `bytes`: for each rank; 0: its share of the
  // machine's memory. Tensors beyond that are allocated as usual.
  explicit SymmetricTensors(ProcessGroup& group, std::size_t bytes = 0);
  ~SymmetricTensors();
  SymmetricTensors(const SymmetricTensors&) = delete;
  SymmetricTensors& operator=(const SymmetricTensors&) = delete;

  // Returns the pages of freed tensors to the system: call it after many tensors were freed for
  // good. Any thread; does nothing if tensors are allocated as usual.
  static void release_unused();

 private:
  // Owners: this, and the allocator while tensors lie in it.
  std::shared_ptr<SymmetricArena> arena_;
};

// Measures the memory of the CPU tensors that this process makes while the meter lives: the bytes
// that a pass keeps, and its peak.
//
//   const TensorMemoryMeter meter;
//   const at::Tensor loss = model.forward(x);
//   meter.bytes();   // kept for the backward pass
//
// Counts every storage that LibTorch allocates, in any thread. Tensors that were made before the
// meter do not count, not even when they are freed. Cost: a lock and an entry of a map for each
// tensor.
//
// Thread safety: one meter at a time in a process; its functions may be called in any thread.
class TensorMemoryMeter {
 public:
  // Error(kInvalid) while another one lives.
  TensorMemoryMeter();
  ~TensorMemoryMeter();
  TensorMemoryMeter(const TensorMemoryMeter&) = delete;
  TensorMemoryMeter& operator=(const TensorMemoryMeter&) = delete;

  // The bytes of the tensors that are alive now.
  std::int64_t bytes() const;
  // The most at once since the meter began, or since begin_peak().
  std::int64_t peak() const;
  void begin_peak();
};

}  // namespace paceline
