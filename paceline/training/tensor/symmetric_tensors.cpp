#include "paceline/training/tensor/symmetric_tensors.h"

#include <string>

#include <unistd.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/log.h"
#include "paceline/training/tensor/tensor_allocator.h"

namespace paceline {
namespace {

std::size_t physical_memory() {
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

SymmetricTensors::SymmetricTensors(ProcessGroup& group, std::size_t bytes) {
  if (group.transport() != "shm") return;
  check(TensorAllocator::instance().arena() == nullptr,
        "{}: tensors of this process are already allocated in a group", group.self());
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
  TensorAllocator::instance().use(arena_);
}

void SymmetricTensors::release_unused() { TensorAllocator::instance().release_unused(); }

SymmetricTensors::~SymmetricTensors() {
  if (arena_) TensorAllocator::instance().use(nullptr);
}

}  // namespace paceline
