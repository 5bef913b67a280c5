#pragma once

// Residual networks (He et al., 2015) with torchvision's architecture, initial values and parameter
// names, so that weights can be exchanged by name. The models do not depend on other ranks and
// support clone(); the normalisation layers come from `Layers`.

#include <array>
#include <cstdint>
#include <vector>

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/pimpl.h>

#include "paceline/training/models/layers.h"

namespace paceline::models {

// A block: two or three convolutions, each with a normalisation, whose result is added to the
// block's input. Parameters: conv1, bn1, ..., downsample.0, downsample.1.
struct ResidualBlockOptions {
  std::int64_t in_channels = 64;
  std::int64_t width = 64;  // channels of the 3x3 convolutions
  std::int64_t stride = 1;
  // Uses three convolutions (1x1, 3x3, 1x1) that end with 4 * width channels, instead of two 3x3
  // convolutions. The 3x3 convolution has the stride, as in torchvision.
  bool is_bottleneck = false;
  std::int64_t out_channels() const { return is_bottleneck ? 4 * width : width; }
};

class ResidualBlockImpl : public torch::nn::Cloneable<ResidualBlockImpl> {
 public:
  explicit ResidualBlockImpl(const ResidualBlockOptions& options, const Layers& layers = {});
  void reset() override;
  // [N, in_channels, H, W] -> [N, out_channels, H / stride, W / stride], rounded up.
  at::Tensor forward(const at::Tensor& input);

  // The last normalisation of the block: if its weight is zero, the block passes its input on.
  const torch::nn::AnyModule& last_norm() const { return norms_.back(); }

 private:
  void add_convolution(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride);

  ResidualBlockOptions options_;
  Layers layers_;
  std::vector<torch::nn::Conv2d> convolutions_;
  std::vector<torch::nn::AnyModule> norms_;  // one for each convolution
  torch::nn::Sequential downsample_{nullptr};
};
TORCH_MODULE(ResidualBlock);

// ResNet-18, 34, 50 and 101. Parameters: conv1, bn1, layer1.0.conv1, ..., fc.
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
  // Error(kInvalid) for any other depth.
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
