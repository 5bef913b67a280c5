#pragma once

// Lists of tensors of any shapes and types, between ranks that do not know them: as the objects of
// engine/collectives/group/objects.h, with the same options and errors. The tensors travel as
// copies on the CPU, without gradients; for large ones of known shape use the collectives.
//
// Thread safety: that of ProcessGroup.

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/object_collectives.h"

namespace paceline {

// Collective. Root's tensors, on every rank. `root`, also below: a rank of `group`.
// Error(kUnsupported) for element types that the engine has not (engine/core/dtype.h).
std::vector<at::Tensor> broadcast_object(ProcessGroup& group,
                                         const std::vector<at::Tensor>& tensors, int root,
                                         const ObjectOptions& options = {});
// Collective. Every rank's tensors, in rank order.
std::vector<std::vector<at::Tensor>> all_gather_object(ProcessGroup& group,
                                                       const std::vector<at::Tensor>& tensors,
                                                       const ObjectOptions& options = {});
// Collective. As all_gather_object at root; empty elsewhere.
std::vector<std::vector<at::Tensor>> gather_objects(ProcessGroup& group,
                                                    const std::vector<at::Tensor>& tensors,
                                                    int root, const ObjectOptions& options = {});

// The tensors as bytes, and back: for each its type, its number of dimensions, its sizes, its
// elements. Error(kCorrupt) for bytes that are not such a list.
std::string to_bytes(const std::vector<at::Tensor>& tensors);
std::vector<at::Tensor> tensors_from_bytes(const std::string& bytes);

}  // namespace paceline
