#include "paceline/training/models/efficient_net.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include <ATen/ATen.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/pimpl.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/models/layers.h"

namespace paceline::models {

// A convolution without bias, a normalisation and, if has_activation, an activation: torchvision's
// Conv2dNormActivation, with its parameter names (0.weight, 1.weight, 1.bias).
struct ConvNormOptions {
  std::int64_t in_channels = 0;
  std::int64_t out_channels = 0;
  std::int64_t kernel = 1;  // odd; the borders are padded with zeros
  std::int64_t stride = 1;
  std::int64_t groups = 1;
  bool has_activation = true;  // SiLU
  // For BatchNorm2d; other normalisation layers keep their own values.
  double norm_epsilon = 1e-5;
  double norm_momentum = 0.1;
};

class ConvNormImpl : public torch::nn::Cloneable<ConvNormImpl> {
 public:
  ConvNormImpl(const ConvNormOptions& options, const Layers& layers);
  void reset() override;
  // [N, in_channels, height, width] -> [N, out_channels, ceil(height / stride), ...]
  at::Tensor forward(const at::Tensor& images);

 private:
  ConvNormOptions options_;
  Layers layers_;
  torch::nn::Conv2d convolution_{nullptr};
  torch::nn::AnyModule norm_;
};
TORCH_MODULE(ConvNorm);

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

// EfficientNet's block (MBConv; Sandler et al., 2018, with the squeeze-and-excitation of Hu et al.,
// 2018): channels are expanded, filtered one by one, weighted according to the whole image, and
// combined again. If the shape does not change, the input is added; in training the block is then
// skipped for randomly drawn samples (stochastic depth; Huang et al., 2016). The parameter names
// are torchvision's.
struct MobileBlockOptions {
  std::int64_t in_channels = 0;
  std::int64_t out_channels = 0;
  std::int64_t expanded_channels = 0;  // equal to in_channels: no expansion
  std::int64_t kernel = 3;
  std::int64_t stride = 1;
  double drop = 0;  // the probability with which the block is skipped
  double norm_epsilon = 1e-5;
  double norm_momentum = 0.1;
};

class MobileBlockImpl : public torch::nn::Cloneable<MobileBlockImpl> {
 public:
  MobileBlockImpl(const MobileBlockOptions& options, const Layers& layers);
  void reset() override;
  // [N, in_channels, height, width] -> [N, out_channels, ceil(height / stride), ...]
  at::Tensor forward(const at::Tensor& images);

 private:
  ConvNormOptions convolution(std::int64_t in_channels, std::int64_t out_channels) const;

  MobileBlockOptions options_;
  Layers layers_;
  torch::nn::ModuleList block_;  // convolutions; before the last, the squeeze-and-excitation
};
TORCH_MODULE(MobileBlock);

namespace {

constexpr std::int64_t kSqueezedBy = 4;

torch::nn::Conv2d plain_convolution(std::int64_t in_channels, std::int64_t out_channels) {
  torch::nn::Conv2d layer(torch::nn::Conv2dOptions(in_channels, out_channels, 1));
  torch::nn::init::kaiming_normal_(layer->weight, 0, torch::kFanOut, torch::kReLU);
  torch::nn::init::zeros_(layer->bias);
  return layer;
}

// Multiplies each channel by a number in (0, 1), which is computed from the means of all channels.
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

namespace {

struct Variant {
  double width, depth, dropout;
  double norm_epsilon = 1e-5;
  double norm_momentum = 0.1;
};
constexpr std::array<Variant, 8> kVariants = {{{1.0, 1.0, 0.2},
                                               {1.0, 1.1, 0.2},
                                               {1.1, 1.2, 0.3},
                                               {1.2, 1.4, 0.3},
                                               {1.4, 1.8, 0.4},
                                               {1.6, 2.2, 0.4, 1e-3, 0.01},
                                               {1.8, 2.6, 0.5, 1e-3, 0.01},
                                               {2.0, 3.1, 0.5, 1e-3, 0.01}}};

// A stage of EfficientNet-B0.
struct Stage {
  std::int64_t expansion, kernel, stride, in_channels, out_channels, blocks;
};
constexpr std::array<Stage, 7> kStages = {{{1, 3, 1, 32, 16, 1},
                                           {6, 3, 2, 16, 24, 2},
                                           {6, 5, 2, 24, 40, 2},
                                           {6, 3, 2, 40, 80, 3},
                                           {6, 5, 1, 80, 112, 3},
                                           {6, 5, 2, 112, 192, 4},
                                           {6, 3, 1, 192, 320, 1}}};

// Rounds to the nearest multiple of 8, but not down by more than a tenth.
std::int64_t scaled(double channels) {
  const auto nearest = std::max<std::int64_t>(8, static_cast<std::int64_t>(channels + 4) / 8 * 8);
  return static_cast<double>(nearest) < 0.9 * channels ? nearest + 8 : nearest;
}

std::int64_t num_blocks(const Stage& stage, const Variant& variant) {
  return static_cast<std::int64_t>(std::ceil(static_cast<double>(stage.blocks) * variant.depth));
}

const Variant& variant_of(int variant) {
  check(variant >= 0 && variant < static_cast<int>(kVariants.size()),
        "efficientnet: there is no B{}; choose 0 to 7", variant);
  return kVariants[static_cast<std::size_t>(variant)];
}

// torchvision's "classifier": its child 0 is dropout, its child 1 the linear layer.
class ClassifierImpl : public torch::nn::Cloneable<ClassifierImpl> {
 public:
  ClassifierImpl(std::int64_t features, std::int64_t classes, double dropout, const Layers& layers)
      : features_(features), classes_(classes), dropout_(dropout), layers_(layers) {
    ClassifierImpl::reset();
  }
  void reset() override {
    linear_ = layers_.linear({features_, classes_});
    register_module("1", linear_.ptr());
    const double range = 1 / std::sqrt(static_cast<double>(classes_));
    for (auto& parameter : linear_.ptr()->named_parameters()) {
      if (parameter.key() == "bias") {
        torch::nn::init::zeros_(parameter.value());
      } else {
        torch::nn::init::uniform_(parameter.value(), -range, range);
      }
    }
  }
  at::Tensor forward(const at::Tensor& features) {
    return linear_.forward<at::Tensor>(layers_.dropout(features, dropout_, is_training()));
  }

 private:
  std::int64_t features_, classes_;
  double dropout_;
  Layers layers_;
  torch::nn::AnyModule linear_;
};
TORCH_MODULE(Classifier);

}  // namespace

EfficientNetImpl::EfficientNetImpl(const EfficientNetOptions& options, const Layers& layers)
    : options_(options), layers_(layers) {
  EfficientNetImpl::reset();
}

void EfficientNetImpl::reset() {
  const Variant& variant = variant_of(options_.variant);
  const auto convolution = [&](std::int64_t in_channels, std::int64_t out_channels) {
    return ConvNormOptions{.in_channels = in_channels,
                           .out_channels = out_channels,
                           .norm_epsilon = variant.norm_epsilon,
                           .norm_momentum = variant.norm_momentum};
  };
  const auto width = [&](std::int64_t channels) {
    return scaled(static_cast<double>(channels) * variant.width);
  };
  features_ = register_module("features", torch::nn::ModuleList());
  ConvNormOptions first = convolution(options_.channels, width(kStages.front().in_channels));
  first.kernel = 3;
  first.stride = 2;
  features_->push_back(ConvNorm(first, layers_));

  double all_blocks = 0;
  for (const Stage& stage : kStages) all_blocks += static_cast<double>(num_blocks(stage, variant));
  double number = 0;
  for (const Stage& stage : kStages) {
    torch::nn::Sequential blocks;
    std::int64_t in_channels = width(stage.in_channels);
    const std::int64_t out_channels = width(stage.out_channels);
    for (std::int64_t block = 0; block < num_blocks(stage, variant); ++block, ++number) {
      blocks->push_back(MobileBlock(
          MobileBlockOptions{
              .in_channels = in_channels,
              .out_channels = out_channels,
              .expanded_channels = scaled(static_cast<double>(in_channels * stage.expansion)),
              .kernel = stage.kernel,
              .stride = block == 0 ? stage.stride : 1,
              .drop = options_.stochastic_depth * number / all_blocks,
              .norm_epsilon = variant.norm_epsilon,
              .norm_momentum = variant.norm_momentum},
          layers_));
      in_channels = out_channels;
    }
    features_->push_back(blocks);
  }
  const std::int64_t last = width(kStages.back().out_channels);
  features_->push_back(ConvNorm(convolution(last, 4 * last), layers_));
  classifier_ =
      torch::nn::AnyModule(Classifier(4 * last, options_.classes, variant.dropout, layers_));
  register_module("classifier", classifier_.ptr());
}

at::Tensor EfficientNetImpl::forward(const at::Tensor& images) {
  at::Tensor features = features_->at<ConvNormImpl>(0).forward(images);
  const std::size_t last = features_->size() - 1;
  for (std::size_t stage = 1; stage < last; ++stage)
    features = features_->at<torch::nn::SequentialImpl>(stage).forward(features);
  features = features_->at<ConvNormImpl>(last).forward(features);
  return classifier_.forward<at::Tensor>(at::adaptive_avg_pool2d(features, {1, 1}).flatten(1));
}

}  // namespace paceline::models
