#pragma once

// A small convolutional network for images of 10 to 100 classes: two 3x3 convolutions with ReLU and
// 2x2 max-pooling, two linear layers. Plain torch::nn, blind to ranks.

#include <cstdint>

#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

namespace paceline::models {

struct CnnOptions {
  std::int64_t channels = 3;
  std::int64_t height = 32;  // divisible by 4, as is the width
  std::int64_t width = 32;
  std::int64_t classes = 10;
};

// conv channels->32, conv 32->64, linear 64*(height/4)*(width/4)->512, linear 512->classes.
class CnnImpl : public torch::nn::Module {
 public:
  explicit CnnImpl(const CnnOptions& options = {});
  // [N, channels, height, width] -> logits [N, classes].
  at::Tensor forward(const at::Tensor& images);

 private:
  torch::nn::Conv2d conv1_, conv2_;
  torch::nn::Linear linear1_, linear2_;
};
TORCH_MODULE(Cnn);

}  // namespace paceline::models
