#pragma once

// Replaces LibTorch's CPU allocator once the first SymmetricTensors or TensorMemoryMeter of the
// process is constructed. While an arena is in use, large tensors are allocated from it, and all
// others by the previous allocator. While a meter lives, the memory of all of them is counted.
//
// LibTorch and its tensors keep plain pointers to the allocator, so there is only one, and it is
// never destroyed. Memory may be freed by its address alone (oneDNN does that), so the address must
// show by which allocator it was allocated.
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
#include "paceline/training/tensor/tensor_memory_meter.h"

namespace paceline {

class TensorAllocator : public PortableAllocator {
 public:
  static TensorAllocator& instance();

  // Allocates large tensors from this arena from now on; null: by the previous allocator again.
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
