#pragma once

// The memory of simulated CUDA devices, without LibTorch. The host cannot read or write it: its
// pages are closed except while a task of a stream, or a copy, has opened them.
//
// Freed memory behaves like that of LibTorch's caching allocator. The next allocation on the same
// stream may get it at once, because tasks of one stream run in order. If a task of another
// stream still uses it, the program has a bug. To make the bug visible, a task of the memory's own
// stream fills it with 0xff (a NaN).
//
// Thread safety: every function may be called from any thread.

#include <cstddef>
#include <memory>

#include "tests/harness/simulated_cuda/streams.h"

namespace paceline::simulated {

// Returns null if the device has less than `bytes` bytes left. `stream`: the stream on which the
// memory will be used.
void* allocate(Stream& stream, std::size_t bytes);
void release(void* memory);
// Declares that the memory is also used on another stream. After its release, it is not reused
// until the tasks that are then queued on that stream have ended.
void use_on(const void* memory, Stream& stream);

// The bytes that the program now holds on a device, and their maximum since reset_peak().
std::size_t live_bytes(int device);
std::size_t peak_bytes(int device);
void reset_peak(int device);
// The memory of a device in bytes; 0: no limit. The initial limit is
// PACELINE_SIMULATED_CUDA_MEMORY.
std::size_t memory_limit(int device);
void set_memory_limit(int device, std::size_t bytes);
// Makes allocations of more than `bytes` bytes fail, as if memory were fragmented; 0: no limit.
void fail_allocations_above(int device, std::size_t bytes);
// The device of the memory to which the pointer points; -1: no device.
int device_of(const void* pointer);

// While this object exists, the host can read and write the block to which the pointer points.
// Pointers to memory of no device are ignored.
class Opened {
 public:
  explicit Opened(const void* pointer);
  ~Opened();
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;

 private:
  char* const block_;
};

// Pinned host memory: a device can copy from it and to it while the host continues.
void* allocate_pinned(std::size_t bytes);
void release_pinned(void* memory);
bool is_pinned(const void* pointer);

}  // namespace paceline::simulated
