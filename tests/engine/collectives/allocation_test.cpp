// A blocking collective of a working group allocates no memory: texts of errors, for example, are
// only composed when an error occurs. This program counts its allocations.

#include <cstdlib>
#include <new>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/harness/process_ranks.h"

namespace {

thread_local std::size_t allocations = 0;

void* allocate(std::size_t bytes, std::size_t alignment) {
  ++allocations;
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment, bytes) != 0) throw std::bad_alloc();
  return memory;
}

}  // namespace

// Not inlined: otherwise GCC 12 warns that inlined halves of new and delete do not match.
#define COUNTED [[gnu::noinline]]
COUNTED void* operator new(std::size_t bytes) { return allocate(bytes, alignof(std::max_align_t)); }
COUNTED void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
// The C++ library's nothrow operator new calls the first operator above. A sanitizer's does not, so
// memory would be allocated and freed by different allocators.
COUNTED void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes, alignof(std::max_align_t));
}
COUNTED void operator delete(void* memory) noexcept { std::free(memory); }
COUNTED void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
COUNTED void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
COUNTED void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
#undef COUNTED

namespace paceline {
namespace {

// A call that has to wait for long, on a busy machine, may allocate.
template <class Call>
std::string counted(const char* name, Call&& call) {
  for (int i = 0; i < 10; ++i) call();
  int allocating = 0;
  for (int i = 0; i < 100; ++i) {
    const std::size_t before = allocations;
    call();
    if (allocations != before) ++allocating;
  }
  return allocating < 50 ? "" : fmt::format("{}: {} of 100 calls allocate; ", name, allocating);
}

TEST(Allocation, a_blocking_collective_at_work_allocates_nothing) {
  const auto results = harness::run_process_ranks(
      2,
      [](ProcessGroup& group) {
        std::vector<float> data(64, 1.0f), all(128);
        const auto small = std::span(data);
        return counted("all_reduce", [&] { group.all_reduce(small); }) +
               counted("broadcast", [&] { group.broadcast(small, 0); }) +
               counted("reduce", [&] { group.reduce(small, 0); }) +
               counted("all_gather", [&] { group.all_gather(std::span(all), small); }) +
               counted("reduce_scatter", [&] { group.reduce_scatter(small, std::span(all)); }) +
               counted("barrier", [&] { group.barrier(); });
      },
      {.transport = TransportKind::kShm});
  for (const auto& result : results) {
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_EQ(result.report, "");
  }
}

}  // namespace
}  // namespace paceline
