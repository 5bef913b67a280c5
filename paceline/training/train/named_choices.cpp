#include "paceline/training/train/named_choices.h"

#include "paceline/engine/core/check.h"
#include "paceline/training/optim/adam.h"
#include "paceline/training/optim/lamb.h"
#include "paceline/training/optim/sgd.h"
#include "paceline/training/parallel/compression_hooks.h"

namespace paceline::train {

std::unique_ptr<optim::Optimizer> make_optimizer(const OptimizerChoice& choice,
                                                 const std::vector<at::Tensor>& parameters) {
  using namespace optim;
  const double lr = choice.lr, momentum = choice.momentum, decay = choice.weight_decay.value_or(0);
  if (choice.name == "sgd") {
    const SgdOptions sgd{.lr = lr, .momentum = momentum, .weight_decay = decay};
    return std::make_unique<Sgd>(parameters, sgd);
  }
  if (choice.name == "lamb")
    return std::make_unique<Lamb>(parameters, LambOptions{.lr = lr, .weight_decay = decay});
  if (choice.name == "lars") {
    const LarsOptions lars{.lr = lr, .momentum = momentum, .weight_decay = decay};
    return std::make_unique<Lars>(parameters, lars);
  }
  if (choice.name == "adamw") {
    AdamWOptions adamw{.lr = lr};
    if (choice.weight_decay) adamw.weight_decay = decay;
    return std::make_unique<AdamW>(parameters, adamw);
  }
  check(choice.name == "adam", "unknown optimizer '{}'; choose one of adam, adamw, sgd, lamb, lars",
        choice.name);
  return std::make_unique<Adam>(parameters, AdamOptions{.lr = lr, .weight_decay = decay});
}

std::shared_ptr<CommunicationHook> make_hook(const HookChoice& choice) {
  if (choice.name == "none") return nullptr;
  if (choice.name == "bf16") return std::make_shared<CompressHook>(at::kBFloat16);
  if (choice.name == "fp16") return std::make_shared<CompressHook>(at::kHalf);
  if (choice.name == "topk") return std::make_shared<TopKHook>(choice.topk_density);
  check(choice.name == "powersgd",
        "unknown communication hook '{}'; choose one of none, bf16, fp16, powersgd, topk",
        choice.name);
  return std::make_shared<PowerSgdHook>(
      PowerSgdOptions{.rank = choice.powersgd_rank, .start_step = choice.powersgd_start});
}

Precision precision_of(const std::string& name) {
  if (name == "bf16") return {.parameters = at::kBFloat16, .autocast = {}};
  if (name == "autocast-bf16") return {.autocast = at::kBFloat16};
  if (name == "autocast-fp16") return {.autocast = at::kHalf, .scales_loss = true};
  check(name == "float32",
        "unknown precision '{}'; choose one of float32, bf16, autocast-bf16, autocast-fp16", name);
  return {};
}

}  // namespace paceline::train
