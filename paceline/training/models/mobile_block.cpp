#include "paceline/training/models/mobile_block.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <torch/nn/init.h>

namespace paceline::models {
namespace {

constexpr std::int64_t kSqueezedBy = 4;

torch::nn::Conv2d plain_convolution(std::int64_t in_channels, std::int64_t out_channels) {
  torch::nn::Conv2d layer(torch::nn::Conv2dOptions(in_channels, out_channels, 1));
  torch::nn::init::kaiming_normal_(layer->weight, 0, torch::kFanOut, torch::kReLU);
  torch::nn::init::zeros_(layer->bias);
  return layer;
}

// Each channel is multiplied with a number in (0, 1) made of the means of all channels.
class SqueezeExcitationImpl : public torch::nn::Cloneable<SqueezeExcitationImpl> {
 public:
  SqueezeExcitationImpl(std::int64_t channels, std::int64_t squeezed)
      : channels_(channels), squeezed_(squeezed) {
    SqueezeExcitationImpl::reset();
  }
  void reset() override {
    fc1_ = register_module("fc1", plain_convolution(channels_, squeezed_));
    fc2_ = register_module("fc2", plain_convolution(squeezed_, channels_));
  }
  at::Tensor forward(const at::Tensor& features) {
    const at::Tensor means = at::adaptive_avg_pool2d(features, {1, 1});
    return features * fc2_->forward(at::silu(fc1_->forward(means))).sigmoid();
  }

 private:
  std::int64_t channels_, squeezed_;
  torch::nn::Conv2d fc1_{nullptr}, fc2_{nullptr};
};
TORCH_MODULE(SqueezeExcitation);

}  // namespace

MobileBlockImpl::MobileBlockImpl(const MobileBlockOptions& options, const Layers& layers)
    : options_(options), layers_(layers) {
  MobileBlockImpl::reset();
}

ConvNormOptions MobileBlockImpl::convolution(std::int64_t in_channels,
                                             std::int64_t out_channels) const {
  return {.in_channels = in_channels,
          .out_channels = out_channels,
          .norm_epsilon = options_.norm_epsilon,
          .norm_momentum = options_.norm_momentum};
}

void MobileBlockImpl::reset() {
  const std::int64_t expanded = options_.expanded_channels;
  block_ = register_module("block", torch::nn::ModuleList());
  if (expanded != options_.in_channels)
    block_->push_back(ConvNorm(convolution(options_.in_channels, expanded), layers_));
  ConvNormOptions depthwise = convolution(expanded, expanded);
  depthwise.kernel = options_.kernel;
  depthwise.stride = options_.stride;
  depthwise.groups = expanded;
  block_->push_back(ConvNorm(depthwise, layers_));
  const std::int64_t squeezed = std::max<std::int64_t>(1, options_.in_channels / kSqueezedBy);
  block_->push_back(SqueezeExcitation(expanded, squeezed));
  ConvNormOptions last = convolution(expanded, options_.out_channels);
  last.has_activation = false;
  block_->push_back(ConvNorm(last, layers_));
}

at::Tensor MobileBlockImpl::forward(const at::Tensor& images) {
  const std::size_t weighting = block_->size() - 2;
  at::Tensor features = images;
  for (std::size_t i = 0; i < block_->size(); ++i) {
    features = i == weighting ? block_->at<SqueezeExcitationImpl>(i).forward(features)
                              : block_->at<ConvNormImpl>(i).forward(features);
  }
  if (options_.stride != 1 || options_.in_channels != options_.out_channels) return features;
  if (options_.drop > 0 && is_training()) {
    const at::Tensor samples = at::ones({images.size(0), 1, 1, 1}, images.options());
    features = features * layers_.dropout(samples, options_.drop, true);
  }
  return features + images;
}

}  // namespace paceline::models
