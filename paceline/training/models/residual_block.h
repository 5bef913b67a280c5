#pragma once

// The block of a residual network (resnet.h).

#include <cstdint>
#include <vector>

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/container/any.h>
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

  // The last normalisation: if its weight and bias are 0, the convolutions contribute nothing.
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

}  // namespace paceline::models
