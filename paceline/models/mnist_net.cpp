#include "paceline/models/mnist_net.h"

namespace paceline::models {

MnistNetImpl::MnistNetImpl()
    : conv1_(torch::nn::Conv2dOptions(1, 20, 5)),
      conv2_(torch::nn::Conv2dOptions(20, 20, 5)),
      linear1_(320, 50),
      linear2_(50, 10) {
  register_module("conv1", conv1_);
  register_module("conv2", conv2_);
  register_module("linear1", linear1_);
  register_module("linear2", linear2_);
}

at::Tensor MnistNetImpl::forward(const at::Tensor& images) {
  const auto first = at::max_pool2d(at::relu(conv1_(images)), 2);
  const auto second = at::max_pool2d(at::relu(conv2_(first)), 2);
  return linear2_(at::relu(linear1_(second.flatten(1))));
}

}  // namespace paceline::models
