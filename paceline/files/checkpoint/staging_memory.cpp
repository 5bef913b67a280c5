#include "paceline/files/checkpoint/staging_memory.h"

#include <cerrno>

#include <sys/mman.h>

#include "paceline/engine/core/check.h"

namespace paceline {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

}  // namespace

std::byte* StagingMemory::reserve(std::size_t bytes) {
  if (bytes <= capacity_) return memory_.get();
  memory_.reset();
  capacity_ = 0;
  const std::size_t capacity = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kHugePage, capacity)));
  if (memory_) {
    // A hint: 512 times fewer pages, in the first copy and in the translation of addresses.
    madvise(memory_.get(), capacity, MADV_HUGEPAGE);
    // A lack of memory shows here and not as a signal later. Linux before 5.14 cannot, and brings
    // the pages with the first copy.
    if (madvise(memory_.get(), capacity, MADV_POPULATE_WRITE) != 0 && errno != EINVAL)
      memory_.reset();
  }
  if (!memory_)
    fail(ErrorCode::kSystem, "no memory for a copy of the checkpoint ({} bytes)", bytes);
  capacity_ = capacity;
  return memory_.get();
}

}  // namespace paceline
