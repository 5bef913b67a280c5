#pragma once

// Collectives of lists of tensors whose shapes and types the receiving ranks do not know, with the
// options and errors of engine/collectives/group/object_collectives.h. The tensors are sent as
// copies on the CPU, without gradients; for large tensors of known shape use the collectives.
//
// Thread safety: as ProcessGroup.

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/object_collectives.h"

namespace paceline {

// Collective. Returns root's tensors on every rank. `root` is a rank of `group`, also below.
// Error(kUnsupported) for element types that the engine lacks (engine/core/dtype.h).
std::vector<at::Tensor> broadcast_object(ProcessGroup& group,
                                         const std::vector<at::Tensor>& tensors, int root,
                                         const ObjectOptions& options = {});
// Collective. Returns every rank's tensors, in rank order.
std::vector<std::vector<at::Tensor>> all_gather_object(ProcessGroup& group,
                                                       const std::vector<at::Tensor>& tensors,
                                                       const ObjectOptions& options = {});
// Collective. Returns every rank's tensors at root, as all_gather_object(), and none on other
// ranks.
std::vector<std::vector<at::Tensor>> gather_objects(ProcessGroup& group,
                                                    const std::vector<at::Tensor>& tensors,
                                                    int root, const ObjectOptions& options = {});

// The tensors as bytes, and the reverse. A tensor is its type, its number of dimensions, its sizes
// and its elements. Error(kCorrupt) for bytes that are not such a list.
std::string to_bytes(const std::vector<at::Tensor>& tensors);
std::vector<at::Tensor> tensors_from_bytes(const std::string& bytes);

}  // namespace paceline
