#pragma once

// The network of many MNIST tutorials: two 5x5 convolutions with ReLU and 2x2 max-pooling, two
// linear layers.

#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

namespace paceline::models {

// conv 1->20, conv 20->20, linear 320->50, linear 50->10.
class MnistNetImpl : public torch::nn::Module {
 public:
  MnistNetImpl();
  // [N, 1, 28, 28] -> logits [N, 10].
  at::Tensor forward(const at::Tensor& images);

 private:
  torch::nn::Conv2d conv1_, conv2_;
  torch::nn::Linear linear1_, linear2_;
};
TORCH_MODULE(MnistNet);

}  // namespace paceline::models
