#pragma once

// The optimizer, the communication hook and the precision that a program's user chose by name, as
// flags have them.
//
// Thread safety: pure functions.

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
  double momentum = 0.9;                    // of sgd and lars
  std::optional<double> weight_decay = {};  // nothing: 0.01 of adamw, 0 of the others
};
// Error(kInvalid) for another name, and those of the optimizers.
std::unique_ptr<optim::Optimizer> make_optimizer(const OptimizerChoice& choice,
                                                 const std::vector<at::Tensor>& parameters);

struct HookChoice {
  std::string name = "none";  // or bf16, fp16, powersgd, topk
  std::int64_t powersgd_rank = 4;
  std::int64_t powersgd_start = 100;  // steps before it compresses
  double topk_density = 0.01;
};
// Null: gradients travel as they are. Error(kInvalid) for another name.
std::shared_ptr<CommunicationHook> make_hook(const HookChoice& choice);

struct Precision {
  at::ScalarType parameters = at::kFloat;
  std::optional<at::ScalarType> autocast;  // of matrix products and convolutions
  bool scales_loss = false;                // float16's gradients need a GradScaler
};
// float32, bf16 (parameters too), autocast-bf16 or autocast-fp16. Error(kInvalid) for another.
Precision precision_of(const std::string& name);

}  // namespace paceline::train
