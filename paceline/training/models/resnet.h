#pragma once

// Residual networks (He et al., 2015) with torchvision's architecture, initial values and parameter
// names, so that weights can be exchanged by name. The models do not depend on other ranks and
// support clone(); the normalisation layers and the last layer come from `Layers`.

#include <array>
#include <cstdint>
#include <vector>

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/pimpl.h>

#include "paceline/training/models/layers.h"

namespace paceline::models {

// ResNet-18, 34, 50 and 101. Their modules are conv1, bn1, layer1.0.conv1, ..., fc.
struct ResNetOptions {
  int depth = 18;  // 18, 34, 50 or 101
  std::int64_t channels = 3;
  std::int64_t classes = 1000;
  // For images of about 32x32: the first convolution is 3x3 with stride 1, and no max-pooling
  // follows it.
  bool small_images = false;
  // Initialises the weight of each block's last normalisation to zero, if that layer has a weight.
  bool zero_init_residual = false;
};

class ResNetImpl : public torch::nn::Cloneable<ResNetImpl> {
 public:
  // Error(kInvalid) for a depth other than 18, 34, 50 and 101.
  explicit ResNetImpl(const ResNetOptions& options = {}, const Layers& layers = {});
  void reset() override;
  // [N, channels, height, width] -> logits [N, classes].
  at::Tensor forward(const at::Tensor& images);

 private:
  torch::nn::Sequential make_stage(std::int64_t& channels, std::int64_t width, int num_blocks,
                                   std::int64_t stride) const;

  ResNetOptions options_;
  Layers layers_;
  torch::nn::Conv2d conv1_{nullptr};
  torch::nn::AnyModule bn1_, fc_;
  std::array<torch::nn::Sequential, 4> stages_{nullptr, nullptr, nullptr, nullptr};
};
TORCH_MODULE(ResNet);

}  // namespace paceline::models
