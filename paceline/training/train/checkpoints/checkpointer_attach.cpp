// CheckpointerCore::attach(): the parts of a run under names, and begin() and save() with them.

#include <cstddef>
#include <functional>
#include <utility>

#include <fmt/ranges.h>

#include "paceline/engine/collectives/group/engine_group.h"
#include "paceline/engine/collectives/group/object_collectives.h"
#include "paceline/engine/collectives/memory/one_copy.h"
#include "paceline/engine/collectives/purpose.h"
#include "paceline/engine/core/check.h"
#include "paceline/training/optim/optimizer_core.h"
#include "paceline/training/optim/parameters/divided_parameters.h"
#include "paceline/training/train/checkpoints/checkpointer_core.h"

namespace paceline::train {

// `part`: the object, if its address identifies it; otherwise null.
void CheckpointerCore::take_name(const std::string& name, const void* part) {
  check(!name.empty() && name.find('.') == std::string::npos,
        "{}: \"{}\" is not a name for a part of a run: it must not be empty or contain a dot",
        group_->self(), name);
  check(
      whole_ == nullptr,
      "{}: \"{}\" is attached after begin(), so a resumed run would have parts that its checkpoint "
      "lacks, or the reverse: attach() every part before begin()",
      group_->self(), name);
  check(names_.insert(name).second, "{}: a part of the run has the name \"{}\" already",
        group_->self(), name);
  if (part == nullptr) return;
  const auto [place, is_new] = part_names_.emplace(part, name);
  check(is_new, "{}: \"{}\" is attached already, as \"{}\": attach each part once", group_->self(),
        name, place->second);
}

void CheckpointerCore::add_state(AttachedState state, const void* part) {
  take_name(state.name, part);
  parts_.states.push_back(std::move(state));
}

void CheckpointerCore::attach(const std::string& name, std::shared_ptr<torch::nn::Module> module) {
  check(module != nullptr, "{}: \"{}\" is a null module", group_->self(), name);
  take_name(name, module.get());
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
  take_name(name, &optimizer);
  optimizer_ = &optimizer;
}

void CheckpointerCore::attach(const std::string& name, optim::ExponentialMovingAverage& average) {
  if (parts_.average != nullptr) {
    fail(ErrorCode::kUnsupported,
         "{}: a checkpoint keeps one average of weights, and \"{}\" is the second", group_->self(),
         name);
  }
  take_name(name, &average);
  parts_.average = &average;
}

void CheckpointerCore::attach(const std::string& name, torch::optim::Optimizer& optimizer) {
  if (is_divided()) {
    fail(ErrorCode::kUnsupported,
         "{}: \"{}\", an optimizer of torch::optim, cannot be saved if a model is divided among "
         "ranks, because each rank's optimizer has another state: use one of paceline::optim",
         group_->self(), name);
  }
  add_state(state_of(name, optimizer), &optimizer);
}

void CheckpointerCore::attach(const std::string& name, torch::optim::StepLR& schedule) {
  add_state(state_of(name, schedule), &schedule);
}

void CheckpointerCore::attach(const std::string& name, data::DataLoader& loader) {
  add_state(state_of(name, loader), &loader);
}

CheckpointerCore::View CheckpointerCore::attached() const {
  check(!modules_.empty(), "{}: attach() a module before begin()", group_->self());
  check(whole_ != nullptr, "{}: call begin() before save()", group_->self());
  return {*whole_, optimizer_};
}

TrainingState CheckpointerCore::state_after(std::int64_t step) const {
  return {.step = step, .seed = seed_};
}

// Collective. Error(kInvalid) on every rank if the ranks have attached different parts. Modules may
// differ: each rank may have stages of its own.
void CheckpointerCore::require_same_parts() const {
  std::set<std::string> names = names_;
  for (const auto& [name, module] : modules_) names.erase(name);
  const auto all = all_gather_object(
      *group_, names.empty() ? "nothing" : fmt::format("\"{}\"", fmt::join(names, "\", \"")));
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    check(all[rank] == all[0],
          "{}: checkpoint: {} has attached {} beside its modules, and rank 0 {}: attach() the same "
          "parts on every rank",
          group_->self(), group_->name_of_member(rank), all[rank], all[0]);
  }
}

// Without its optimizer, a model of fully_shard() with divided gradients could be saved, but its
// run could not continue: in stage 3 only the optimizer may write the parameters.
void CheckpointerCore::require_optimizer() const {
  if (optimizer_ != nullptr) return;
  for (const auto& item : whole_->named_parameters()) {
    const at::Tensor& parameter = item.value();
    const bool is_shared = parameter.is_cpu() && OneCopy::holds(parameter.data_ptr());
    check(
        !is_shared && !optim::is_gradient_divided(parameter),
        "{}: checkpoint: parameter {} belongs to a model of fully_shard(), whose optimizer is not "
        "attached: attach(\"optimizer\", optimizer) before begin(), or the run cannot continue",
        group_->self(), item.key());
  }
}

// Collective. Error(kInvalid) on every rank if the ranks hold different parameters, as the stages
// of a pipeline do, but count as replicas of one model.
void CheckpointerCore::require_same_model() const {
  const bool divides = optimizer_ != nullptr && core_of(*optimizer_).divides_parameters();
  if (is_divided() || divides || !options_.compare_replicas) return;
  std::string own;
  for (const auto& item : whole_->named_parameters())
    own += fmt::format("{} {}\n", item.key(), fmt::join(item.value().sizes(), " "));
  const auto all = all_gather_object(*group_, std::to_string(std::hash<std::string>()(own)));
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    check(all[rank] == all[0],
          "{}: checkpoint: {} has other parameters than rank 0: if the ranks divide the model, as "
          "in a Pipeline, set CheckpointOptions::replicas to the ranks that hold the same part "
          "(group->split(group->rank(), 0)), and use an optimizer of paceline::optim",
          group_->self(), group_->name_of_member(rank));
  }
}

std::int64_t CheckpointerCore::begin(std::uint64_t seed) {
  engine(*group_).enter(kBegin);
  if (modules_.size() == 1) {
    whole_ = modules_.front().second;
  } else {
    whole_ = std::make_shared<torch::nn::Module>();
    for (const auto& [name, module] : modules_) whole_->register_module(name, module);
  }
  require_same_parts();
  require_optimizer();
  require_same_model();
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
