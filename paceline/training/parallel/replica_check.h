#pragma once

// Are these the same parameters on every rank?

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/backends/backend_list.h"
#include "paceline/engine/collectives/group/process_group.h"

namespace paceline {

struct NamedParameter {
  std::string name;
  at::Tensor tensor;
};

// Collective. Error(kInvalid), on every rank, that names the first parameter whose name, shape,
// type, memory layout or need of a gradient differs from rank 0's, with both sides, or says which
// rank has more or fewer.
void require_same_parameters(ProcessGroup& group, const std::vector<NamedParameter>& parameters);

// The device of all `parameters`, of which there is one at least. Error(kInvalid) that names two on
// different devices; kUnsupported when a group with this choice of backends does not reach it.
// Pure.
c10::Device one_device_of(const std::vector<NamedParameter>& parameters, int rank,
                          const BackendChoice& choice);

}  // namespace paceline
