#pragma once

// Are these the same parameters on every rank?

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/collectives/process_group.h"

namespace paceline {

struct NamedParameter {
  std::string name;
  at::Tensor tensor;
};

// Collective. Error(kInvalid), on every rank, that names the first parameter whose name, shape,
// type or memory layout differs from rank 0's, with both sides, or says which rank has more or
// fewer.
void require_same_parameters(ProcessGroup& group, const std::vector<NamedParameter>& parameters);

}  // namespace paceline
