#include "paceline/training/models/cnn.h"

#include "paceline/engine/core/check.h"

namespace paceline::models {

namespace {

torch::nn::Conv2dOptions three_by_three(std::int64_t in, std::int64_t out) {
  return torch::nn::Conv2dOptions(in, out, 3).padding(1);
}

// Pooling before ReLU gives the same values and gradients, and leaves a quarter of the work for
// ReLU.
at::Tensor halve_and_relu(const at::Tensor& features) {
  at::Tensor half = at::max_pool2d(features, 2);
  return at::relu_(half);
}

}  // namespace

CnnImpl::CnnImpl(const CnnOptions& options, const Layers& layers)
    : options_(options), layers_(layers) {
  check(options.height % 4 == 0 && options.width % 4 == 0,
        "cnn: the image size {}x{} does not divide by 4", options.height, options.width);
  CnnImpl::reset();
}

void CnnImpl::reset() {
  conv1_ = register_module("conv1", torch::nn::Conv2d(three_by_three(options_.channels, 32)));
  conv2_ = register_module("conv2", torch::nn::Conv2d(three_by_three(32, 64)));
  linear1_ = layers_.linear({64 * (options_.height / 4) * (options_.width / 4), 512});
  linear2_ = layers_.linear({512, options_.classes});
  register_module("linear1", linear1_.ptr());
  register_module("linear2", linear2_.ptr());
}

at::Tensor CnnImpl::forward(const at::Tensor& images) {
  const auto features = halve_and_relu(conv2_(halve_and_relu(conv1_(images))));
  at::Tensor hidden = linear1_.forward(features.flatten(1));
  return linear2_.forward(at::relu_(hidden));
}

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
