#include "paceline/training/models/resnet.h"

#include <string>
#include <utility>

#include <torch/nn/init.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/models/residual_block.h"

namespace paceline::models {
namespace {

torch::nn::Conv2d convolution(std::int64_t in, std::int64_t out, std::int64_t kernel,
                              std::int64_t stride) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

struct Architecture {
  int depth = 0;
  bool has_bottlenecks = false;
  std::array<int, 4> blocks = {};
};
constexpr std::array<Architecture, 4> kArchitectures = {{{18, false, {2, 2, 2, 2}},
                                                         {34, false, {3, 4, 6, 3}},
                                                         {50, true, {3, 4, 6, 3}},
                                                         {101, true, {3, 4, 23, 3}}}};

const Architecture& architecture_of(int depth) {
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.depth == depth) return architecture;
  }
  fail(ErrorCode::kInvalid, "resnet: unknown depth {}; choose 18, 34, 50 or 101", depth);
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

ResNetImpl::ResNetImpl(const ResNetOptions& options, const Layers& layers)
    : options_(options), layers_(layers) {
  ResNetImpl::reset();
}

void ResNetImpl::reset() {
  const Architecture& architecture = architecture_of(options_.depth);
  const auto [kernel, stride] = options_.small_images ? std::pair(3, 1) : std::pair(7, 2);
  conv1_ = register_module("conv1", convolution(options_.channels, 64, kernel, stride));
  bn1_ = layers_.norm(64);
  register_module("bn1", bn1_.ptr());
  std::int64_t channels = 64;
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    stages_[i] = register_module(
        "layer" + std::to_string(i + 1),
        make_stage(channels, std::int64_t{64} << i, architecture.blocks[i], i == 0 ? 1 : 2));
  }
  fc_ = layers_.linear({channels, options_.classes});
  register_module("fc", fc_.ptr());
  for (const auto& module : modules(/*include_self=*/false)) {
    if (auto* layer = module->as<torch::nn::Conv2d>())
      torch::nn::init::kaiming_normal_(layer->weight, 0, torch::kFanOut, torch::kReLU);
    if (!options_.zero_init_residual) continue;
    if (auto* block = module->as<ResidualBlock>()) {
      auto parameters = block->last_norm().ptr()->named_parameters(/*recurse=*/false);
      if (auto* weight = parameters.find("weight")) torch::nn::init::zeros_(*weight);
    }
  }
}

// `channels` is the number of input channels, and is set to the number of output channels.
torch::nn::Sequential ResNetImpl::make_stage(std::int64_t& channels, std::int64_t width,
                                             int num_blocks, std::int64_t stride) const {
  torch::nn::Sequential stage;
  for (int block = 0; block < num_blocks; ++block) {
    const ResidualBlockOptions options{
        .in_channels = channels,
        .width = width,
        .stride = block == 0 ? stride : 1,
        .is_bottleneck = architecture_of(options_.depth).has_bottlenecks};
    stage->push_back(ResidualBlock(options, layers_));
    channels = options.out_channels();
  }
  return stage;
}

at::Tensor ResNetImpl::forward(const at::Tensor& images) {
  at::Tensor features = bn1_.forward(conv1_->forward(images));
  at::relu_(features);
  if (!options_.small_images) features = at::max_pool2d(features, 3, 2, 1);
  for (auto& stage : stages_) features = stage->forward(features);
  return fc_.forward(at::adaptive_avg_pool2d(features, {1, 1}).flatten(1));
}

}  // namespace paceline::models
