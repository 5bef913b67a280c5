#pragma once

// Two small convolutional networks for images. They do not depend on other ranks and support
// clone().

#include <cstdint>

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/pimpl.h>

#include "paceline/training/models/layers.h"

namespace paceline::models {

struct CnnOptions {
  std::int64_t channels = 3;
  std::int64_t height = 32;  // height and width must be divisible by 4
  std::int64_t width = 32;
  std::int64_t classes = 10;
};

// A network for 10 to 100 classes: two 3x3 convolutions with ReLU and 2x2 max-pooling, two linear
// layers.
//
// conv channels->32, conv 32->64, linear 64*(height/4)*(width/4)->512, linear 512->classes.
class CnnImpl : public torch::nn::Cloneable<CnnImpl> {
 public:
  // Uses only the linear layers of `layers`.
  explicit CnnImpl(const CnnOptions& options = {}, const Layers& layers = {});
  void reset() override;
  // [N, channels, height, width] -> logits [N, classes].
  at::Tensor forward(const at::Tensor& images);

 private:
  CnnOptions options_;
  Layers layers_;
  torch::nn::Conv2d conv1_{nullptr}, conv2_{nullptr};
  torch::nn::AnyModule linear1_, linear2_;
};
TORCH_MODULE(Cnn);

// The network of many MNIST tutorials: two 5x5 convolutions with ReLU and 2x2 max-pooling, two
// linear layers.
//
// conv 1->20, conv 20->20, linear 320->50, linear 50->10.
class MnistNetImpl : public torch::nn::Cloneable<MnistNetImpl> {
 public:
  // Uses only the linear layers of `layers`.
  explicit MnistNetImpl(const Layers& layers = {});
  void reset() override;
  // [N, 1, 28, 28] -> logits [N, 10].
  at::Tensor forward(const at::Tensor& images);

 private:
  Layers layers_;
  torch::nn::Conv2d conv1_{nullptr}, conv2_{nullptr};
  torch::nn::AnyModule linear1_, linear2_;
};
TORCH_MODULE(MnistNet);

}  // namespace paceline::models
