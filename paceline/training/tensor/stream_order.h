#pragma once

// The place of a call on a device's tensors in the order of LibTorch's streams: behind what the
// calling thread's current stream has been given, and before what the current stream of a thread
// that waited for it will be given. So c10d orders its NCCL.
//
// By LibTorch's own interface to devices, which a CUDA build fills when it is loaded: nothing here
// is linked to CUDA. Thread safety: that of DeviceOrder.

#include <memory>

#include <c10/core/Device.h>

#include "paceline/engine/collectives/device_order.h"

namespace paceline {

// For a call that is made now. Error(kUnsupported) when the LibTorch at hand has no such devices.
std::shared_ptr<const DeviceOrder> order_in_current_stream(c10::Device device);

}  // namespace paceline
