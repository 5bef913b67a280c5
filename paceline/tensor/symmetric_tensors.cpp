#include "paceline/tensor/symmetric_tensors.h"

#include <mutex>
#include <string>
#include <vector>

#include <unistd.h>

#include <c10/core/CPUAllocator.h>

#include "paceline/core/check.h"
#include "paceline/core/log.h"
#include "paceline/tensor/libtorch_version.h"

namespace paceline {
namespace {

// LibTorch keeps a plain pointer to its allocator, also in tensors; so there is one, for ever. A
// block's address alone must tell where it came from: oneDNN frees what it took by address.
class TensorAllocator : public PortableAllocator {
 public:
  // Null: the usual memory again.
  void use(std::shared_ptr<SymmetricArena> arena) {
    const std::lock_guard lock(mutex_);
    if (arena) arenas_.push_back(arena);
    current_ = std::move(arena);
    drop_empty_arenas();
  }
  bool is_used() const {
    const std::lock_guard lock(mutex_);
    return current_ != nullptr;
  }
  void release_unused() const {
    const std::lock_guard lock(mutex_);
    if (current_) current_->release_unused();
  }
  void free(void* block) {
    {
      const std::lock_guard lock(mutex_);
      for (const auto& arena : arenas_) {
        if (!arena->contains(block)) continue;
        arena->deallocate(static_cast<std::byte*>(block));
        if (arena != current_) drop_empty_arenas();
        return;
      }
    }
    usual_->raw_deallocate(block);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }

 private:
  static void free_block(void* block);

  c10::DataPtr allocate_block(std::size_t bytes) const override {
    if (bytes >= SymmetricTensors::kLeastBytes) {
      const std::lock_guard lock(mutex_);
      if (std::byte* const block = current_ ? current_->allocate(bytes) : nullptr)
        return {block, block, &free_block, c10::Device(c10::kCPU)};
    }
    return usual_->allocate(bytes);
  }

  // Those that are not in use any more, and no tensor lies in.
  void drop_empty_arenas() {
    std::erase_if(arenas_,
                  [&](const auto& arena) { return arena != current_ && arena->is_empty(); });
  }

  c10::Allocator* const usual_ = c10::GetCPUAllocator();
  mutable std::mutex mutex_;  // guards everything below
  std::shared_ptr<SymmetricArena> current_;
  std::vector<std::shared_ptr<SymmetricArena>> arenas_;
};

TensorAllocator& allocator() {
  static auto* const instance = [] {
    auto* const made = new TensorAllocator;
    c10::SetCPUAllocator(made, 1);
    return made;
  }();
  return *instance;
}

void TensorAllocator::free_block(void* block) { allocator().free(block); }

std::size_t physical_memory() {
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

SymmetricTensors::SymmetricTensors(ProcessGroup& group, std::size_t bytes) {
  if (group.transport() != "shm") return;
  check(!allocator().is_used(), "rank {}: tensors of this process are already allocated in a group",
        group.rank());
  try {
    const auto num_ranks = static_cast<std::size_t>(group.world_size());
    arena_ =
        std::make_shared<SymmetricArena>(group, bytes > 0 ? bytes : physical_memory() / num_ranks);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kSystem) throw;
    if (group.rank() == 0)
      log::warning(std::string(error.what()) + "; gradients will be copied into shared buckets");
    return;
  }
  allocator().use(arena_);
}

void SymmetricTensors::release_unused() { allocator().release_unused(); }

SymmetricTensors::~SymmetricTensors() {
  if (arena_) allocator().use(nullptr);
}

}  // namespace paceline
