#pragma once

// Replaces LibTorch's CPU allocator once the first SymmetricTensors or TensorMemoryMeter of the
// process is constructed. While an arena is in use, large tensors are allocated from it, and all
// others by the previous allocator. While a meter lives, the memory of all tensors is counted.
//
// LibTorch and its tensors keep plain pointers to the allocator, so there is only one, and it is
// never destroyed. Memory may be freed by its address alone (oneDNN does that), so the address must
// show by which allocator it was allocated.
//
// TensorMemoryMeter measures the memory of LibTorch's tensors on the CPU.
//
// Thread safety: any thread may call every function.

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "paceline/engine/collectives/memory/symmetric_arena.h"
#include "paceline/training/tensor/libtorch_version.h"

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

class TensorAllocator : public PortableAllocator {
 public:
  static TensorAllocator& instance();

  // Allocates large tensors from this arena from now on; null: from the previous allocator again.
  void use(std::shared_ptr<SymmetricArena> arena);
  // The arena from which large tensors are allocated; null: there is none.
  std::shared_ptr<SymmetricArena> arena() const;
  void release_unused() const;

  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }

 private:
  friend class TensorMemoryMeter;  // reads and resets the counters
  TensorAllocator();

  static void free_block(void* block);
  c10::DataPtr allocate_block(std::size_t bytes) const override;
  void free(void* block);
  void drop_empty_arenas();
  void count(void* block, std::size_t bytes) const;

  c10::Allocator* const usual_;
  std::atomic<bool> counts_ = false;  // changed under mutex_
  mutable std::mutex mutex_;          // guards everything below
  std::shared_ptr<SymmetricArena> current_;
  std::vector<std::shared_ptr<SymmetricArena>> arenas_;
  mutable std::unordered_map<void*, std::size_t> counted_;  // [block]: its bytes
  mutable std::int64_t counted_bytes_ = 0;
  mutable std::int64_t counted_peak_ = 0;
};

}  // namespace paceline
