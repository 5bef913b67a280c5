#pragma once

// LibTorch's allocators for the memory of the simulated devices. On a device without enough memory
// they throw c10::OutOfMemoryError, as LibTorch's own do.

#include <c10/core/Allocator.h>

namespace paceline::simulated {

c10::Allocator* device_allocator();  // allocates on the calling thread's current device and stream
c10::Allocator* pinned_allocator();

}  // namespace paceline::simulated
