#pragma once

// EfficientNet-B0 to B7 (Tan and Le, 2019) with torchvision's architecture, initial values and
// parameter names (features.0.0, features.1.0.block.0.0, ..., classifier.1), so that weights can be
// exchanged by name. Normalisation, dropout and the last layer come from `Layers`. The model does
// not depend on other ranks and supports clone().

#include <cstdint>

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/pimpl.h>

#include "paceline/training/models/layers.h"

namespace paceline::models {

struct EfficientNetOptions {
  int variant = 0;  // 0 to 7: B0 to B7
  std::int64_t channels = 3;
  std::int64_t classes = 1000;
  double stochastic_depth = 0.2;  // block i of n is dropped with this probability times i / n
};

class EfficientNetImpl : public torch::nn::Cloneable<EfficientNetImpl> {
 public:
  // Error(kInvalid) if the variant is not in [0, 7].
  explicit EfficientNetImpl(const EfficientNetOptions& options = {}, const Layers& layers = {});
  void reset() override;
  // [N, channels, height, width] -> logits [N, classes].
  at::Tensor forward(const at::Tensor& images);

 private:
  EfficientNetOptions options_;
  Layers layers_;
  torch::nn::ModuleList features_;  // a convolution, stages of blocks, and a convolution
  torch::nn::AnyModule classifier_;
};
TORCH_MODULE(EfficientNet);

}  // namespace paceline::models
