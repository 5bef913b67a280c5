#pragma once

// The network of many MNIST tutorials: two 5x5 convolutions with ReLU and 2x2 max-pooling, two
// linear layers. It can be cloned.

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/pimpl.h>

#include "paceline/training/models/layers.h"

namespace paceline::models {

// conv 1->20, conv 20->20, linear 320->50, linear 50->10.
class MnistNetImpl : public torch::nn::Cloneable<MnistNetImpl> {
 public:
  // Of `layers` it uses the linear ones.
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
