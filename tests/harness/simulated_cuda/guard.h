#pragma once

// The part of the simulated devices that LibTorch's device guards use: the current device and the
// current streams of each thread.

#include "tests/harness/simulated_cuda/streams.h"

namespace paceline::simulated {

// The calling thread's current device, and its current stream on a device.
int current_device();
// For the stand-in of cudart: LibTorch and the runtime have the same current device.
void set_current_device(int device);
Stream& current_stream(int device);

}  // namespace paceline::simulated
