#include "paceline/models/cnn.h"

#include "paceline/core/check.h"

namespace paceline::models {
namespace {

torch::nn::Conv2dOptions three_by_three(std::int64_t in, std::int64_t out) {
  return torch::nn::Conv2dOptions(in, out, 3).padding(1);
}

at::Tensor relu_and_halve(const at::Tensor& features) {
  return at::max_pool2d(at::relu(features), 2);
}

}  // namespace

CnnImpl::CnnImpl(const CnnOptions& options)
    : conv1_(three_by_three(options.channels, 32)),
      conv2_(three_by_three(32, 64)),
      linear1_(64 * (options.height / 4) * (options.width / 4), 512),
      linear2_(512, options.classes) {
  check(options.height % 4 == 0 && options.width % 4 == 0,
        "cnn: the image size {}x{} does not divide by 4", options.height, options.width);
  register_module("conv1", conv1_);
  register_module("conv2", conv2_);
  register_module("linear1", linear1_);
  register_module("linear2", linear2_);
}

at::Tensor CnnImpl::forward(const at::Tensor& images) {
  const auto features = relu_and_halve(conv2_(relu_and_halve(conv1_(images))));
  return linear2_(at::relu(linear1_(features.flatten(1))));
}

}  // namespace paceline::models
