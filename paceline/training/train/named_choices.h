#pragma once

// Optimizers, communication hooks and precisions by name, for a program's flags.
//
// Thread safety: the functions may be called from any thread.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/training/optim/optimizer.h"
#include "paceline/training/parallel/communication_hook.h"

namespace paceline::train {

struct OptimizerChoice {
  std::string name = "adam";  // or adamw, sgd, lamb, lars
  double lr = 1e-3;
  double momentum = 0.9;                    // for sgd and lars
  std::optional<double> weight_decay = {};  // nullopt: 0.01 for adamw, 0 for the others
};
// Makes an optimizer by name. Error(kInvalid) for an unknown name; errors of the optimizers.
std::unique_ptr<optim::Optimizer> make_optimizer(const OptimizerChoice& choice,
                                                 const std::vector<at::Tensor>& parameters);

struct HookChoice {
  std::string name = "none";  // or bf16, fp16, powersgd, topk
  std::int64_t powersgd_rank = 4;
  std::int64_t powersgd_start = 100;  // steps before the hook begins to compress
  double topk_density = 0.01;
};
// Makes a hook by name; null: gradients are sent uncompressed. Error(kInvalid) for an unknown name.
std::shared_ptr<CommunicationHook> make_hook(const HookChoice& choice);

struct Precision {
  at::ScalarType parameters = at::kFloat;
  std::optional<at::ScalarType> autocast;  // for matrix products and convolutions
  bool scales_loss = false;                // float16 gradients need a GradScaler
};
// `name`: float32, bf16 (parameters too), autocast-bf16 or autocast-fp16. Error(kInvalid) for an
// unknown name.
Precision precision_of(const std::string& name);

}  // namespace paceline::train
