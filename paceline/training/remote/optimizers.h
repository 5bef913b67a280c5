#pragma once

// What a DistributedOptimizer makes at the owners of parameters: torch::optim's optimizers, chosen
// by the type of their options. These are messages; each owner makes the optimizer itself. A
// program's own optimizer is one more such type, which the owners serve (serve_optimizer()):
//
//   struct Lion {
//     static constexpr std::string_view kName = "lion";
//     double lr = 1e-4;
//     static auto fields(auto& m) { return std::tie(m.lr); }
//     std::unique_ptr<torch::optim::Optimizer> make(Tensors parameters) const;
//   };

#include <concepts>
#include <memory>
#include <string_view>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "paceline/engine/rpc/message.h"

namespace paceline::remote {

using OptimizerPointer = std::unique_ptr<torch::optim::Optimizer>;

template <class T>
concept OptimizerOptions =
    rpc::Message<T> && requires(const T& options, std::vector<at::Tensor> parameters) {
      { T::kName } -> std::convertible_to<std::string_view>;
      { options.make(std::move(parameters)) } -> std::same_as<OptimizerPointer>;
    };

struct SGD {
  static constexpr std::string_view kName = "sgd";
  double lr = 1e-3, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false;
  static auto fields(auto& m) {
    return std::tie(m.lr, m.momentum, m.dampening, m.weight_decay, m.nesterov);
  }
  OptimizerPointer make(std::vector<at::Tensor> parameters) const;
};

struct Adam {
  static constexpr std::string_view kName = "adam";
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool amsgrad = false;
  static auto fields(auto& m) {
    return std::tie(m.lr, m.beta1, m.beta2, m.eps, m.weight_decay, m.amsgrad);
  }
  OptimizerPointer make(std::vector<at::Tensor> parameters) const;
};

struct AdamW {
  static constexpr std::string_view kName = "adamw";
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 1e-2;
  bool amsgrad = false;
  static auto fields(auto& m) {
    return std::tie(m.lr, m.beta1, m.beta2, m.eps, m.weight_decay, m.amsgrad);
  }
  OptimizerPointer make(std::vector<at::Tensor> parameters) const;
};

struct Adagrad {
  static constexpr std::string_view kName = "adagrad";
  double lr = 1e-2, lr_decay = 0, weight_decay = 0, initial_accumulator = 0, eps = 1e-10;
  static auto fields(auto& m) {
    return std::tie(m.lr, m.lr_decay, m.weight_decay, m.initial_accumulator, m.eps);
  }
  OptimizerPointer make(std::vector<at::Tensor> parameters) const;
};

struct RMSprop {
  static constexpr std::string_view kName = "rmsprop";
  double lr = 1e-2, alpha = 0.99, eps = 1e-8, weight_decay = 0, momentum = 0;
  bool centered = false;
  static auto fields(auto& m) {
    return std::tie(m.lr, m.alpha, m.eps, m.weight_decay, m.momentum, m.centered);
  }
  OptimizerPointer make(std::vector<at::Tensor> parameters) const;
};

}  // namespace paceline::remote
