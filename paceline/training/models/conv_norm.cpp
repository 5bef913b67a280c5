#include "paceline/training/models/conv_norm.h"

#include <ATen/ATen.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/batchnorm.h>

namespace paceline::models {

ConvNormImpl::ConvNormImpl(const ConvNormOptions& options, const Layers& layers)
    : options_(options), layers_(layers) {
  ConvNormImpl::reset();
}

void ConvNormImpl::reset() {
  convolution_ = register_module(
      "0", torch::nn::Conv2d(torch::nn::Conv2dOptions(options_.in_channels, options_.out_channels,
                                                      options_.kernel)
                                 .stride(options_.stride)
                                 .padding(options_.kernel / 2)
                                 .groups(options_.groups)
                                 .bias(false)));
  torch::nn::init::kaiming_normal_(convolution_->weight, 0, torch::kFanOut, torch::kReLU);
  norm_ = layers_.norm(options_.out_channels);
  register_module("1", norm_.ptr());
  if (auto* norm = norm_.ptr()->as<torch::nn::BatchNorm2d>())
    norm->options.eps(options_.norm_epsilon).momentum(options_.norm_momentum);
}

at::Tensor ConvNormImpl::forward(const at::Tensor& images) {
  at::Tensor features = norm_.forward<at::Tensor>(convolution_->forward(images));
  return options_.has_activation ? at::silu(features) : features;
}

}  // namespace paceline::models
