#pragma once

// The memory of simulated CUDA devices, without LibTorch. The host cannot read or write it: its
// pages are closed except while a task of a stream, or a copy, has opened them.
//
// Freed memory behaves as that of LibTorch's caching allocator. The next allocation on the same
// stream may get it at once, because tasks of one stream run in order. A task of another stream
// that still uses it is a mistake of the program, which is made visible: the memory is filled with
// 0xff (a NaN) in the order of its own stream.
//
// Thread safety: every function may be called from any thread.

#include <cstddef>
#include <memory>

#include "tests/harness/simulated_cuda/streams.h"

namespace paceline::simulated {

// Returns null if the device has less than `bytes` bytes left. `stream`: on which the memory will
// be used.
void* allocate(Stream& stream, std::size_t bytes);
void release(void* memory);
// From now on the memory is also used on another stream: after its release it is not given to
// others before the tasks that this stream has then have ended.
void use_on(const void* memory, Stream& stream);

// The bytes that a program has allocated on a device, and the most since reset_peak().
std::size_t live_bytes(int device);
std::size_t peak_bytes(int device);
void reset_peak(int device);
// The bytes that a device has; 0: no limit. At first: PACELINE_SIMULATED_CUDA_MEMORY, or no limit.
std::size_t memory_limit(int device);
void set_memory_limit(int device, std::size_t bytes);
// Allocations of more than `bytes` bytes fail, as if memory were in pieces; 0: none does.
void fail_allocations_above(int device, std::size_t bytes);
// The device of the memory to which the pointer points; -1: not of any device.
int device_of(const void* pointer);

// While it exists, the host can read and write the memory to which the pointer points. Pointers to
// other memory are ignored.
class Opened {
 public:
  explicit Opened(const void* pointer);
  ~Opened();
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;

 private:
  char* const block_;
};

// Host memory that a device can copy from and to by itself.
void* allocate_pinned(std::size_t bytes);
void release_pinned(void* memory);
bool is_pinned(const void* pointer);

}  // namespace paceline::simulated
