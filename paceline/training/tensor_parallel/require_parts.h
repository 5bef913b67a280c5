#pragma once

// Checks that the number of ranks of a group divides the features of a layer, and computes this
// rank's part.

#include <cstdint>
#include <string_view>
#include <vector>

#include "paceline/training/autograd/differentiable_collectives.h"
#include "paceline/training/models/divided_layer.h"
#include "paceline/training/models/layers.h"

namespace paceline::tensor_parallel {

// Error(kInvalid) unless this rank is in the group.
void require_group(std::string_view layer, const GroupPtr& group);
// Returns this rank's part along `dim` of a weight with `features` features. `inner` has the kinds
// of features; no counts: all are of one kind. Error(kInvalid), which names rank, layer and blocks,
// if the number of ranks does not divide a kind, or the kinds do not add up to `features`.
models::Division division_among(std::string_view layer, const ProcessGroup& group, std::int64_t dim,
                                std::int64_t features, const models::InnerFeatures& inner);
// Records that this rank has only a part of the layer's parameters
// (training/tensor/tensor_marks.h).
void note_parts(std::string_view layer, const models::Division& division,
                const std::vector<at::Tensor>& parameters);
// Error(kInvalid) unless the input's last dimension has `features` features.
void require_features(std::string_view layer, const ProcessGroup& group, const at::Tensor& input,
                      std::int64_t features);

}  // namespace paceline::tensor_parallel
