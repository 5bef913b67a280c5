// CheckpointerCore::attach(): the parts of a run under names, and begin() and save() with them.

#include <utility>

#include <fmt/format.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/train/checkpoints/checkpointer_core.h"

namespace paceline::train {

void CheckpointerCore::take_name(const std::string& name) {
  check(!name.empty() && name.find('.') == std::string::npos,
        "{}: \"{}\" is not a name for a part of a run: it must not be empty or contain a dot",
        group_->self(), name);
  check(names_.insert(name).second, "{}: a part of the run has the name \"{}\" already",
        group_->self(), name);
}

void CheckpointerCore::add_state(AttachedState state) {
  take_name(state.name);
  parts_.states.push_back(std::move(state));
}

void CheckpointerCore::attach(const std::string& name, std::shared_ptr<torch::nn::Module> module) {
  check(module != nullptr, "{}: \"{}\" is a null module", group_->self(), name);
  take_name(name);
  modules_.emplace_back(name, std::move(module));
}

void CheckpointerCore::attach_reducer(Reducer& reducer) {
  const bool first_has_hook = parts_.reducer != nullptr && parts_.reducer->has_hook();
  if (first_has_hook && reducer.has_hook()) {
    fail(ErrorCode::kUnsupported,
         "{}: a checkpoint keeps the tensors of one communication hook, and two models have one",
         group_->self());
  }
  if (!first_has_hook) parts_.reducer = &reducer;
}

void CheckpointerCore::attach(const std::string& name, optim::Optimizer& optimizer) {
  if (optimizer_ != nullptr) {
    fail(ErrorCode::kUnsupported,
         "{}: a checkpoint keeps one optimizer of paceline::optim, and \"{}\" is the second: use "
         "those of torch::optim, as a GAN must, or one optimizer with a group of parameters for "
         "each",
         group_->self(), name);
  }
  take_name(name);
  optimizer_ = &optimizer;
}

void CheckpointerCore::attach(const std::string& name, optim::ExponentialMovingAverage& average) {
  if (parts_.average != nullptr) {
    fail(ErrorCode::kUnsupported,
         "{}: a checkpoint keeps one average of weights, and \"{}\" is the second", group_->self(),
         name);
  }
  take_name(name);
  parts_.average = &average;
}

void CheckpointerCore::attach(const std::string& name, torch::optim::Optimizer& optimizer) {
  add_state(state_of(name, optimizer));
  has_torch_optimizer_ = true;
}

void CheckpointerCore::attach(const std::string& name, torch::optim::StepLR& schedule) {
  add_state(state_of(name, schedule));
}

void CheckpointerCore::attach(const std::string& name, data::DataLoader& loader) {
  add_state(state_of(name, loader));
}

CheckpointerCore::View CheckpointerCore::attached() const {
  check(!modules_.empty(), "{}: attach() a module before begin()", group_->self());
  check(whole_ != nullptr, "{}: call begin() before save()", group_->self());
  return {*whole_, optimizer_};
}

TrainingState CheckpointerCore::state_after(std::int64_t step) const {
  return {.step = step, .seed = seed_};
}

std::int64_t CheckpointerCore::begin(std::uint64_t seed) {
  if (modules_.size() == 1) {
    whole_ = modules_.front().second;
  } else {
    whole_ = std::make_shared<torch::nn::Module>();
    for (const auto& [name, module] : modules_) whole_->register_module(name, module);
  }
  const auto restored = begin(attached(), seed);
  seed_ = restored ? restored->state.seed : seed;
  return restored ? restored->state.step : 0;
}

bool CheckpointerCore::save(std::int64_t step) {
  const View run = attached();
  return save(state_after(step), run.module, run.optimizer);
}

bool CheckpointerCore::save_to_memory(std::int64_t step) {
  const View run = attached();
  return save_to_memory(state_after(step), run.module, run.optimizer);
}

}  // namespace paceline::train
