#include "paceline/training/models/mnist_net.h"

namespace paceline::models {

MnistNetImpl::MnistNetImpl(const Layers& layers) : layers_(layers) { MnistNetImpl::reset(); }

void MnistNetImpl::reset() {
  conv1_ = register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 20, 5)));
  conv2_ = register_module("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(20, 20, 5)));
  linear1_ = layers_.linear({320, 50});
  linear2_ = layers_.linear({50, 10});
  register_module("linear1", linear1_.ptr());
  register_module("linear2", linear2_.ptr());
}

at::Tensor MnistNetImpl::forward(const at::Tensor& images) {
  const auto first = at::max_pool2d(at::relu(conv1_(images)), 2);
  const auto second = at::max_pool2d(at::relu(conv2_(first)), 2);
  return linear2_.forward(at::relu(linear1_.forward(second.flatten(1))));
}

}  // namespace paceline::models
