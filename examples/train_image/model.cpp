#include "examples/train_image/model.h"

#include <algorithm>
#include <optional>

#include "paceline/engine/core/check.h"
#include "paceline/training/models/cnn.h"
#include "paceline/training/models/efficient_net.h"
#include "paceline/training/models/resnet.h"
#include "paceline/training/parallel/sync_batch_norm.h"
#include "paceline/training/tensor/compute_settings.h"
#include "paceline/training/tensor/random.h"
#include "paceline/training/train/training_step.h"

#include "examples/train_image/images.h"
#include "examples/train_image/options.h"

namespace train_image {
namespace {

namespace models = paceline::models;

constexpr int kDepths[] = {18, 34, 50, 101};
constexpr int kEfficientNetSizes[] = {224, 240, 288, 300, 380, 456, 528, 600};  // B0 to B7
// Up to this size, images get the first layers that ResNet has for small images.
constexpr std::int64_t kSmall = 40;

// The number at the end of "resnet18" or "efficientnet_b3". Empty if `model` is not of this family.
std::optional<int> number_of(const std::string& model, const std::string& family) {
  if (!model.starts_with(family)) return {};
  return std::stoi(model.substr(family.size()));
}

torch::nn::AnyModule make_network(const std::string& name, const Images& images,
                                  const models::Layers& layers) {
  const auto classes = static_cast<std::int64_t>(images.classes.size());
  if (const auto depth = number_of(name, "resnet")) {
    const bool small = std::max(images.height, images.width) <= kSmall;
    return torch::nn::AnyModule(models::ResNet(models::ResNetOptions{.depth = *depth,
                                                                     .channels = images.channels,
                                                                     .classes = classes,
                                                                     .small_images = small},
                                               layers));
  }
  if (const auto variant = number_of(name, "efficientnet_b")) {
    return torch::nn::AnyModule(models::EfficientNet(
        models::EfficientNetOptions{
            .variant = *variant, .channels = images.channels, .classes = classes},
        layers));
  }
  if (name == "cnn") {
    const models::CnnOptions shape{images.channels, images.height, images.width, classes};
    return torch::nn::AnyModule(models::Cnn(shape, layers));
  }
  const bool fits = images.channels == 1 && images.height == 28 && images.width == 28;
  paceline::check(fits,
                  "--model net takes images of 1x28x28, those of {} are {}x{}x{}; use --model cnn",
                  images.name, images.channels, images.height, images.width);
  return torch::nn::AnyModule(models::MnistNet(layers));
}

// Convolutions on the CPU are faster when the channels are the innermost dimension.
void put_channels_last(torch::nn::Module& module) {
  for (auto& parameter : module.parameters()) {
    if (parameter.dim() == 4)
      parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
  }
}

}  // namespace

std::vector<std::string> model_names() {
  std::vector<std::string> names{"cnn", "net"};
  for (const int depth : kDepths) names.push_back("resnet" + std::to_string(depth));
  for (int variant = 0; variant < 8; ++variant)
    names.push_back("efficientnet_b" + std::to_string(variant));
  return names;
}

std::int64_t usual_image_size(const std::string& model) {
  if (model == "cnn") return 32;
  return kEfficientNetSizes[number_of(model, "efficientnet_b").value_or(0)];
}

Model::Model(const Options& options, const Images& images,
             const std::shared_ptr<paceline::ProcessGroup>& group)
    : precision(paceline::train::precision_of(options.training.precision)) {
  models::Layers layers{.dropout = paceline::dropout};
  if (options.sync_batch_norm) layers.norm = paceline::sync_batch_norm(group);
  network = make_network(options.model, images, layers);
  register_module(options.model, network.ptr());
  for (auto& parameter : parameters()) parameter.set_data(parameter.to(precision.parameters));
  for (auto& buffer : buffers()) {
    if (buffer.is_floating_point()) buffer.set_data(buffer.to(precision.parameters));
  }
  put_channels_last(*this);
}

at::Tensor Model::forward(const at::Tensor& images) {
  std::optional<paceline::Autocast> casting;
  if (precision.autocast) casting.emplace(*precision.autocast);
  return network.forward(images.to(precision.parameters)).to(at::kFloat);
}

}  // namespace train_image
