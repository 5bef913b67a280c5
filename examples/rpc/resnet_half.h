#pragma once

// A ResNet-18 in two halves, each of which may be on its own worker.

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <torch/torch.h>

#include "paceline/training/models/layers.h"
#include "paceline/training/models/resnet.h"

// Half of a ResNet: the layers up to its second stage, or the layers from its third stage on.
struct HalfImpl : torch::nn::Module {
  HalfImpl(paceline::models::ResNet whole, bool first) {
    const auto children = whole->named_children();
    const auto names = first ? std::vector<std::string>{"conv1", "bn1", "layer1", "layer2"}
                             : std::vector<std::string>{"layer3", "layer4", "fc"};
    for (const auto& name : names) register_module(name, children[name]);
  }
  torch::Tensor forward(torch::Tensor features) {
    auto children = named_children();
    if (children.contains("conv1")) {
      features = children["conv1"]->as<torch::nn::Conv2d>()->forward(features);
      features = torch::relu(children["bn1"]->as<torch::nn::BatchNorm2d>()->forward(features));
    }
    for (const char* const stage : {"layer1", "layer2", "layer3", "layer4"}) {
      if (!children.contains(stage)) continue;
      features = children[stage]->as<torch::nn::Sequential>()->forward(features);
    }
    if (!children.contains("fc")) return features;
    features = torch::adaptive_avg_pool2d(features, {1, 1}).flatten(1);
    return children["fc"]->as<paceline::models::Linear>()->forward(features);
  }
};
TORCH_MODULE(Half);

struct ResNetHalf {  // how another worker creates a Half
  static constexpr std::string_view kName = "resnet_half";
  struct Arguments {
    bool first = true;
    std::uint64_t seed = 0;
    static auto fields(auto& m) { return std::tie(m.first, m.seed); }
  };
  static Half make(const Arguments& arguments) {
    torch::manual_seed(arguments.seed);
    return Half(paceline::models::ResNet(paceline::models::ResNetOptions{
                    .depth = 18, .classes = 10, .small_images = true}),
                arguments.first);
  }
};
