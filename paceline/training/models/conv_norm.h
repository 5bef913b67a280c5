#pragma once

// A convolution without bias, a normalisation and, as a rule, an activation behind them: what
// torchvision calls Conv2dNormActivation, with its parameter names (0.weight, 1.weight, 1.bias).

#include <cstdint>

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/pimpl.h>

#include "paceline/training/models/layers.h"

namespace paceline::models {

struct ConvNormOptions {
  std::int64_t in_channels = 0;
  std::int64_t out_channels = 0;
  std::int64_t kernel = 1;  // odd; the borders are padded with zeros
  std::int64_t stride = 1;
  std::int64_t groups = 1;
  bool has_activation = true;  // SiLU
  // Of BatchNorm2d, where the normalisation is one.
  double norm_epsilon = 1e-5;
  double norm_momentum = 0.1;
};

class ConvNormImpl : public torch::nn::Cloneable<ConvNormImpl> {
 public:
  ConvNormImpl(const ConvNormOptions& options, const Layers& layers);
  void reset() override;
  // [N, in_channels, height, width] -> [N, out_channels, ceil(height / stride), ...]
  at::Tensor forward(const at::Tensor& images);

 private:
  ConvNormOptions options_;
  Layers layers_;
  torch::nn::Conv2d convolution_{nullptr};
  torch::nn::AnyModule norm_;
};
TORCH_MODULE(ConvNorm);

}  // namespace paceline::models
