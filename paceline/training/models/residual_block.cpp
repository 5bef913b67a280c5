#include "paceline/training/models/residual_block.h"

#include <string>

namespace paceline::models {
namespace {

torch::nn::Conv2d convolution(std::int64_t in, std::int64_t out, std::int64_t kernel,
                              std::int64_t stride) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

}  // namespace

ResidualBlockImpl::ResidualBlockImpl(const ResidualBlockOptions& options, const Layers& layers)
    : options_(options), layers_(layers) {
  ResidualBlockImpl::reset();
}

void ResidualBlockImpl::reset() {
  convolutions_.clear();
  norms_.clear();
  const auto [in, width, stride, is_bottleneck] = options_;
  if (is_bottleneck) {
    add_convolution(in, width, 1, 1);
    add_convolution(width, width, 3, stride);
    add_convolution(width, options_.out_channels(), 1, 1);
  } else {
    add_convolution(in, width, 3, stride);
    add_convolution(width, width, 3, 1);
  }
  downsample_ = nullptr;
  if (stride == 1 && in == options_.out_channels()) return;
  downsample_ = register_module("downsample", torch::nn::Sequential());
  downsample_->push_back(convolution(in, options_.out_channels(), 1, stride));
  downsample_->push_back(layers_.norm(options_.out_channels()));
}

void ResidualBlockImpl::add_convolution(std::int64_t in, std::int64_t out, std::int64_t kernel,
                                        std::int64_t stride) {
  const std::string number = std::to_string(convolutions_.size() + 1);
  convolutions_.push_back(register_module("conv" + number, convolution(in, out, kernel, stride)));
  norms_.push_back(layers_.norm(out));
  register_module("bn" + number, norms_.back().ptr());
}

at::Tensor ResidualBlockImpl::forward(const at::Tensor& input) {
  at::Tensor features = input;
  for (std::size_t i = 0; i < convolutions_.size(); ++i) {
    if (i > 0) at::relu_(features);
    features = norms_[i].forward(convolutions_[i]->forward(features));
  }
  features += downsample_ ? downsample_->forward(input) : input;
  return at::relu_(features);
}

}  // namespace paceline::models
