#pragma once

// Which parameters are only one rank's share of a model: those of a pipeline's stages, of layers
// that are divided among ranks, of branches on different ranks. What reads all parameters of a
// rank, such as the norm of the gradients, would otherwise take them for the whole model. The code
// that divides a model notes the shares; the process keeps them as long as the parameters live.
//
// Thread safety: any thread.

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace paceline {

struct ModelShare {
  std::string part;         // what the parameter belongs to: "a stage of a pipeline of 2 ranks"
  bool is_divided = false;  // the parameter itself is a part of a larger one
};

void note_model_share(const std::vector<at::Tensor>& parameters, const ModelShare& share);
// These have a whole model's gradients from now on.
void forget_model_share(const std::vector<at::Tensor>& parameters);

struct FoundShare {
  std::size_t parameter = 0;  // its number
  ModelShare share;
};
// The first parameter that is noted; with `divided_only` the first that is itself divided.
std::optional<FoundShare> first_model_share(const std::vector<at::Tensor>& parameters,
                                            bool divided_only = false);

}  // namespace paceline
