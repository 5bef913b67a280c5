#include "paceline/training/optim/libtorch_optimizer.h"

#include <tuple>
#include <typeinfo>

#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include "paceline/engine/core/check.h"

namespace paceline::optim {
namespace {

using torch::optim::OptimizerOptions;

// Calls `visit` with the momentum of LibTorch's options (for Adam and AdamW, the first of the
// betas); does nothing if the options have none.
template <class Visit>
void with_momentum(OptimizerOptions& options, const Visit& visit) {
  const auto with_betas = [&](auto& of_adam) {
    auto betas = of_adam.betas();
    visit(std::get<0>(betas));
    of_adam.betas(betas);
  };
  if (auto* const sgd = dynamic_cast<torch::optim::SGDOptions*>(&options)) {
    visit(sgd->momentum());
  } else if (auto* const rms = dynamic_cast<torch::optim::RMSpropOptions*>(&options)) {
    visit(rms->momentum());
  } else if (auto* const adam = dynamic_cast<torch::optim::AdamOptions*>(&options)) {
    with_betas(*adam);
  } else if (auto* const adamw = dynamic_cast<torch::optim::AdamWOptions*>(&options)) {
    with_betas(*adamw);
  }
}

std::string name_of(const torch::optim::Optimizer& optimizer) {
  return c10::demangle(typeid(optimizer).name());
}

// Runs an action of LibTorch, and throws its errors without their backtrace, which is of no use.
template <class Action>
auto plainly(const std::string& name, const char* what, const Action& action) {
  try {
    return action();
  } catch (const c10::Error& error) {
    fail(ErrorCode::kInvalid, "{}: {}: {}", name, what, error.what_without_backtrace());
  }
}

std::vector<double> rates_of(torch::optim::Optimizer& optimizer) {
  return plainly(name_of(optimizer), "the learning rate of its options (get_lr())", [&] {
    std::vector<double> rates;
    for (auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
    return rates;
  });
}

}  // namespace

LibTorchOptimizer::LibTorchOptimizer(torch::optim::Optimizer& wrapped)
    : Optimizer(
          [&] {
            if (dynamic_cast<const torch::optim::LBFGS*>(&wrapped) != nullptr) {
              fail(ErrorCode::kUnsupported,
                   "torch::optim::LBFGS computes the loss several times a step and needs a closure "
                   "for it, which a TrainingRun does not have: write a loop of your own, call "
                   "step(closure) there, and save it with a Checkpointer (docs/recipes.md)");
            }
            const std::vector<double> rates = rates_of(wrapped);
            std::vector<GroupTensors> groups;
            for (std::size_t i = 0; i < rates.size(); ++i)
              groups.push_back({wrapped.param_groups()[i].params(), rates[i]});
            return groups;
          }(),
          {}),
      wrapped_(wrapped),
      name_(name_of(wrapped)),
      agreed_(learning_rates()) {
  for (std::size_t group = 0; group < num_groups(); ++group)
    has_momentum_.push_back(LibTorchOptimizer::momentum(group) > 0);
}

void LibTorchOptimizer::take_rates() {
  agreed_ = rates_of(wrapped_);
  set_learning_rates(agreed_);
}

double LibTorchOptimizer::momentum(std::size_t group) const {
  double found = 0;
  with_momentum(wrapped_.param_groups().at(group).options(),
                [&](const double& momentum) { found = momentum; });
  return found;
}

void LibTorchOptimizer::set_momentum(std::size_t group, double momentum) {
  check(momentum >= 0 && momentum < 1 && (momentum == 0 || has_momentum_.at(group)),
        "a momentum must be in [0, 1), and 0 in a group that began without one");
  with_momentum(wrapped_.param_groups().at(group).options(),
                [&](double& option) { option = momentum; });
}

bool LibTorchOptimizer::take_whole_step(std::vector<double>& rates) const {
  for (std::size_t i = 0; i < rates.size(); ++i) {
    if (rates[i] != agreed_[i]) wrapped_.param_groups()[i].options().set_lr(rates[i]);
  }
  const auto writing = writable_parameters();  // LibTorch's SGD writes through data()
  plainly(name_, "step()", [&] { wrapped_.step(); });
  agreed_ = rates = rates_of(wrapped_);
  return true;
}

// Counts the bytes of the archive in which LibTorch saves the state; the bytes themselves are
// dropped.
std::size_t LibTorchOptimizer::num_bytes_of_own_state() const {
  std::size_t bytes = 0;
  torch::serialize::OutputArchive archive;
  wrapped_.save(archive);
  archive.save_to([&](const void*, std::size_t size) {
    bytes += size;
    return size;
  });
  return bytes;
}

void LibTorchOptimizer::update(const UpdateSlice& /*slice*/, const NormPair& /*norms*/) const {}

}  // namespace paceline::optim
