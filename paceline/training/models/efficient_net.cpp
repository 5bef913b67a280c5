#include "paceline/training/models/efficient_net.h"

#include <array>
#include <cmath>

#include <ATen/ATen.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/container/sequential.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/models/conv_norm.h"
#include "paceline/training/models/mobile_block.h"

namespace paceline::models {
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

// A stage of B0.
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

// To a multiple of 8, the nearest one that does not lose more than a tenth.
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

// What torchvision registers as classifier.1; classifier.0 is dropout.
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
