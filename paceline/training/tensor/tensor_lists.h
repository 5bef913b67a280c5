#pragma once

// Collectives on lists of tensors whose shapes and types the receiving ranks do not know, with the
// options and errors of engine/collectives/group/object_collectives.h. The tensors are sent as
// copies on the CPU, without gradients; for large tensors of known shape use collectives.h.
//
// Thread safety: same as ProcessGroup.

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/object_collectives.h"
#include "paceline/engine/collectives/group/process_group.h"

namespace paceline {

// Collective. Returns root's tensors on every rank. `root` is a rank of `group`, here and below.
// Error(kUnsupported) for element types that the engine does not support (engine/core/dtype.h).
std::vector<at::Tensor> broadcast_object(GroupRef group, const std::vector<at::Tensor>& tensors,
                                         int root, const ObjectOptions& options = {});
// Collective. Returns every rank's tensors, in rank order.
std::vector<std::vector<at::Tensor>> all_gather_object(GroupRef group,
                                                       const std::vector<at::Tensor>& tensors,
                                                       const ObjectOptions& options = {});
// Collective. Returns every rank's tensors at root, as all_gather_object() does, and an empty list
// on other ranks.
std::vector<std::vector<at::Tensor>> gather_objects(GroupRef group,
                                                    const std::vector<at::Tensor>& tensors,
                                                    int root, const ObjectOptions& options = {});

}  // namespace paceline
