#pragma once

// LibTorch's allocator of CPU tensors, from the first SymmetricTensors or TensorMemoryMeter of a
// process on: large tensors from a SymmetricArena while one is used, the others from where they
// were; counted while a meter lives.
//
// LibTorch keeps a plain pointer to its allocator, also in tensors; so there is one, for ever. A
// block's address alone must tell where it came from: oneDNN frees what it took by address.
//
// Thread safety: all of it.

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "paceline/engine/collectives/memory/symmetric_arena.h"
#include "paceline/training/tensor/libtorch_version.h"

namespace paceline {

class TensorAllocator : public PortableAllocator {
 public:
  static TensorAllocator& instance();

  // Null: the usual memory again.
  void use(std::shared_ptr<SymmetricArena> arena);
  // The one that large tensors come from; null: none.
  std::shared_ptr<SymmetricArena> arena() const;
  void release_unused() const;

  // What is allocated from now on; false when it is being counted already.
  bool begin_counting();
  void end_counting();
  std::int64_t counted_bytes() const;
  std::int64_t counted_peak() const;
  void begin_peak();

  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }

 private:
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
  mutable std::unordered_map<void*, std::size_t> counted_;  // blocks that live
  mutable std::int64_t counted_bytes_ = 0;
  mutable std::int64_t counted_peak_ = 0;
};

}  // namespace paceline
