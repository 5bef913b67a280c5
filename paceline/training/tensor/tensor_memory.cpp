#include "paceline/training/tensor/tensor_memory.h"

#include <algorithm>
#include <string>

#include <unistd.h>

#include <c10/core/CPUAllocator.h>

#include "paceline/engine/collectives/memory/symmetric_arena.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/log.h"
#include "paceline/training/tensor/tensor_allocator.h"

namespace paceline {

TensorAllocator::TensorAllocator() : usual_(c10::GetCPUAllocator()) {}

TensorAllocator& TensorAllocator::instance() {
  static auto* const instance = [] {
    auto* const made = new TensorAllocator;
    c10::SetCPUAllocator(made, 1);
    return made;
  }();
  return *instance;
}

void TensorAllocator::use(std::shared_ptr<SymmetricArena> arena) {
  const std::lock_guard lock(mutex_);
  if (arena) arenas_.push_back(arena);
  current_ = std::move(arena);
  drop_empty_arenas();
}

std::shared_ptr<SymmetricArena> TensorAllocator::arena() const {
  const std::lock_guard lock(mutex_);
  return current_;
}

void TensorAllocator::release_unused() const {
  const std::lock_guard lock(mutex_);
  if (current_) current_->release_unused();
}

void TensorAllocator::count(void* block, std::size_t bytes) const {
  if (!counts_ || block == nullptr) return;
  counted_[block] = bytes;
  counted_bytes_ += static_cast<std::int64_t>(bytes);
  counted_peak_ = std::max(counted_peak_, counted_bytes_);
}

c10::DataPtr TensorAllocator::allocate_block(std::size_t bytes) const {
  const bool is_large = bytes >= SymmetricTensors::kMinBytes;
  if (!is_large && !counts_) return usual_->allocate(bytes);
  const std::lock_guard lock(mutex_);
  if (current_ && is_large) {
    if (std::byte* const block = current_->allocate(bytes)) {
      count(block, bytes);
      return {block, block, &free_block, c10::Device(c10::kCPU)};
    }
  }
  if (!counts_) return usual_->allocate(bytes);
  void* const block = usual_->raw_allocate(bytes);
  count(block, bytes);
  return {block, block, &free_block, c10::Device(c10::kCPU)};
}

void TensorAllocator::free(void* block) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = counted_.find(block); found != counted_.end()) {
      counted_bytes_ -= static_cast<std::int64_t>(found->second);
      counted_.erase(found);
    }
    for (const auto& arena : arenas_) {
      if (!arena->contains(block)) continue;
      arena->deallocate(static_cast<std::byte*>(block));
      if (arena != current_) drop_empty_arenas();
      return;
    }
  }
  usual_->raw_deallocate(block);
}

void TensorAllocator::free_block(void* block) { instance().free(block); }

// Drops the arenas that are no longer in use and contain no tensor.
void TensorAllocator::drop_empty_arenas() {
  std::erase_if(arenas_, [&](const auto& arena) { return arena != current_ && arena->is_empty(); });
}

namespace {

std::size_t physical_memory() {
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

SymmetricTensors::SymmetricTensors(GroupRef group, std::size_t bytes) {
  if (group->transport() != "shm") return;
  check(TensorAllocator::instance().arena() == nullptr,
        "{}: another SymmetricTensors object already exists in this process", group->self());
  try {
    const auto num_ranks = static_cast<std::size_t>(group->world_size());
    arena_ =
        std::make_shared<SymmetricArena>(group, bytes > 0 ? bytes : physical_memory() / num_ranks);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kSystem) throw;
    if (group->rank() == 0)
      log::warning(std::string(error.what()) + "; gradients will be copied into shared buckets");
    return;
  }
  TensorAllocator::instance().use(arena_);
}

void SymmetricTensors::release_unused() { TensorAllocator::instance().release_unused(); }

SymmetricTensors::~SymmetricTensors() {
  if (arena_) TensorAllocator::instance().use(nullptr);
}

TensorMemoryMeter::TensorMemoryMeter() {
  TensorAllocator& allocator = TensorAllocator::instance();
  const std::lock_guard lock(allocator.mutex_);
  check(!allocator.counts_, "the memory of this process's tensors is being measured already");
  allocator.counts_ = true;
  allocator.counted_.clear();
  allocator.counted_bytes_ = allocator.counted_peak_ = 0;
}

TensorMemoryMeter::~TensorMemoryMeter() {
  TensorAllocator& allocator = TensorAllocator::instance();
  const std::lock_guard lock(allocator.mutex_);
  allocator.counts_ = false;
  allocator.counted_.clear();
}

std::int64_t TensorMemoryMeter::bytes() const {
  const TensorAllocator& allocator = TensorAllocator::instance();
  const std::lock_guard lock(allocator.mutex_);
  return allocator.counted_bytes_;
}

std::int64_t TensorMemoryMeter::peak() const {
  const TensorAllocator& allocator = TensorAllocator::instance();
  const std::lock_guard lock(allocator.mutex_);
  return allocator.counted_peak_;
}

void TensorMemoryMeter::begin_peak() {
  TensorAllocator& allocator = TensorAllocator::instance();
  const std::lock_guard lock(allocator.mutex_);
  allocator.counted_peak_ = allocator.counted_bytes_;
}

}  // namespace paceline
