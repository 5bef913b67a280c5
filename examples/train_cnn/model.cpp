#include "examples/train_cnn/model.h"

#include "paceline/core/check.h"
#include "paceline/optim/adam.h"
#include "paceline/optim/sgd.h"
#include "paceline/parallel/compression_hooks.h"
#include "paceline/tensor/autocast.h"

namespace train_cnn {

namespace models = paceline::models;
namespace optim = paceline::optim;

Model::Model(const Options& options, const paceline::data::ImageDataset& images) {
  if (options.model == "net") {
    const bool fits = images.channels() == 1 && images.height() == 28 && images.width() == 28;
    paceline::check(fits,
                    "--model net takes images of 1x28x28, those of {} are {}x{}x{}; use "
                    "--model cnn",
                    images.name, images.channels(), images.height(), images.width());
    net = register_module("net", models::MnistNet());
  } else {
    const auto classes = static_cast<std::int64_t>(images.classes.size());
    const models::CnnOptions shape{images.channels(), images.height(), images.width(), classes};
    cnn = register_module("cnn", models::Cnn(shape));
  }
  if (options.precision == "bf16") type = at::kBFloat16;
  if (options.precision == "autocast-bf16") autocast = at::kBFloat16;
  if (options.precision == "autocast-fp16") autocast = at::kHalf;
  to(type);
  // Convolutions on the CPU are faster when the channels are the innermost dimension.
  for (auto& parameter : parameters()) {
    if (parameter.dim() == 4)
      parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
  }
}

at::Tensor Model::forward(const at::Tensor& images) {
  std::optional<paceline::Autocast> casting;
  if (autocast) casting.emplace(*autocast);
  const at::Tensor input = images.to(type);
  return (net ? net->forward(input) : cnn->forward(input)).to(at::kFloat);
}

std::unique_ptr<optim::Optimizer> make_optimizer(const Options& options,
                                                 std::vector<at::Tensor> parameters) {
  if (options.optimizer == "sgd") {
    const optim::SgdOptions sgd{
        .lr = options.lr, .momentum = options.momentum, .weight_decay = options.weight_decay};
    return std::make_unique<optim::Sgd>(std::move(parameters), sgd);
  }
  const optim::AdamOptions adam{.lr = options.lr, .weight_decay = options.weight_decay};
  if (options.optimizer == "adamw")
    return std::make_unique<optim::AdamW>(std::move(parameters), adam);
  return std::make_unique<optim::Adam>(std::move(parameters), adam);
}

std::shared_ptr<paceline::CommunicationHook> make_hook(const Options& options) {
  if (options.hook == "bf16") return std::make_shared<paceline::CompressHook>(at::kBFloat16);
  if (options.hook == "fp16") return std::make_shared<paceline::CompressHook>(at::kHalf);
  if (options.hook == "topk") return std::make_shared<paceline::TopKHook>(options.topk_density);
  if (options.hook != "powersgd") return nullptr;
  return std::make_shared<paceline::PowerSgdHook>(
      paceline::PowerSgdOptions{.rank = options.powersgd_rank, .start_step = options.hook_start});
}

}  // namespace train_cnn
