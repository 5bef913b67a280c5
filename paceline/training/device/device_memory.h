#pragma once

// Memory of a CUDA device that every rank of a group needs.
//
// Thread safety: none.

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/process_group.h"

namespace paceline {

// Returns a row of zeros on a CUDA device. If the device has no memory for it, aborts the group,
// because the other ranks would wait for this one: every rank gets an error that names the device,
// `what` needs the memory, and the remedies `cure`; here it is Error(kSystem).
at::Tensor zeros_on_device(ProcessGroup& group, std::int64_t count, at::ScalarType type,
                           c10::Device device, const std::string& what, const std::string& cure);

}  // namespace paceline
