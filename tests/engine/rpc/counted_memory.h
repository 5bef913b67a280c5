#pragma once

// Counts the bytes that the program has allocated with `new` and not freed. Include it in one
// source of a program: it replaces the global operators.

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

#include <malloc.h>

namespace paceline::rpc {

// The count includes the bytes that the allocator adds to each piece.
inline std::atomic<std::ptrdiff_t> num_allocated_bytes{0};
inline constexpr std::ptrdiff_t kBytesOfAPiece = 8;

inline void* allocate_counted(std::size_t size, std::size_t alignment) {
  void* const place =
      alignment <= alignof(std::max_align_t)
          ? std::malloc(size)
          : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (place == nullptr) throw std::bad_alloc();
  num_allocated_bytes.fetch_add(
      static_cast<std::ptrdiff_t>(::malloc_usable_size(place)) + kBytesOfAPiece,
      std::memory_order_relaxed);
  return place;
}
inline void free_counted(void* place) noexcept {
  if (place == nullptr) return;
  num_allocated_bytes.fetch_sub(
      static_cast<std::ptrdiff_t>(::malloc_usable_size(place)) + kBytesOfAPiece,
      std::memory_order_relaxed);
  std::free(place);
}

}  // namespace paceline::rpc

void* operator new(std::size_t size) {
  return paceline::rpc::allocate_counted(size, alignof(std::max_align_t));
}
void* operator new[](std::size_t size) {
  return paceline::rpc::allocate_counted(size, alignof(std::max_align_t));
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  return paceline::rpc::allocate_counted(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return paceline::rpc::allocate_counted(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* place) noexcept { paceline::rpc::free_counted(place); }
void operator delete[](void* place) noexcept { paceline::rpc::free_counted(place); }
void operator delete(void* place, std::size_t) noexcept { paceline::rpc::free_counted(place); }
void operator delete[](void* place, std::size_t) noexcept { paceline::rpc::free_counted(place); }
void operator delete(void* place, std::align_val_t) noexcept { paceline::rpc::free_counted(place); }
void operator delete[](void* place, std::align_val_t) noexcept {
  paceline::rpc::free_counted(place);
}
void operator delete(void* place, std::size_t, std::align_val_t) noexcept {
  paceline::rpc::free_counted(place);
}
void operator delete[](void* place, std::size_t, std::align_val_t) noexcept {
  paceline::rpc::free_counted(place);
}
