#include "paceline/training/train/checkpoints/checkpointer.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "paceline/engine/collectives/group/engine_group.h"
#include "paceline/engine/collectives/group/object_collectives.h"
#include "paceline/engine/collectives/purpose.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/training/models/layer_functions.h"
#include "paceline/training/optim/optimizer_core.h"
#include "paceline/training/parallel/reducer/gradient_placement.h"
#include "paceline/training/parallel/replica_guard.h"
#include "paceline/training/tensor/collectives.h"
#include "paceline/training/train/checkpoints/checkpointer_core.h"
#include "paceline/training/train/checkpoints/run_snapshot.h"
#include "paceline/training/train/run_parts.h"

namespace paceline::train {

namespace {

constexpr std::chrono::minutes kLongestLock{2};

at::Generator random_generator() { return at::detail::getDefaultCPUGenerator(); }

// Collective. Only rank 0 runs `action`; every rank gets its result or its error.
bool ask_rank_0(ProcessGroup& group, const std::function<bool()>& action) {
  std::int32_t answer = 0;
  on_rank(0, group, [&] { answer = action() ? 1 : 0; });
  group.broadcast(std::span(&answer, 1), 0);
  return answer != 0;
}

// Returns whether no save has failed. Throws kAborted, because a job that another generation has
// replaced must end.
bool is_written(const std::optional<Error>& error) {
  if (error && error->code() == ErrorCode::kAborted) throw *error;
  return !error;
}

// After a restart, a writer of the older generation may still hold the lock, on a host that has
// been lost.
std::chrono::milliseconds lock_timeout(const ProcessGroup& group) {
  if (engine(group).launch_environment().restart_count == 0) return {};
  return kLongestLock;
}

}  // namespace

CheckpointerCore::CheckpointerCore(std::shared_ptr<ProcessGroup> group,
                                   const CheckpointOptions& options)
    : group_(paceline::detail::require_group(std::move(group), "Checkpointer")),
      replicas_(options.replicas ? options.replicas : group_),
      options_(options),
      team_(group_, options.folder,
            {.keep = options.keep,
             .writer = {engine(*group_).launch_environment().job_id,
                        engine(*group_).launch_environment().restart_count},
             .lock_timeout = lock_timeout(*group_)}) {
  if (!options.memory.empty()) memory_.emplace(group_, options.memory);
}

// Collective. If any rank has found a problem, throws it on every rank, before anything is saved.
void CheckpointerCore::require_sound(const TrainingState& state, const torch::nn::Module& module,
                                     const optim::Optimizer* optimizer) const {
  check(parts_.average == nullptr || !parts_.average->is_swapped_in(),
        "{}: no checkpoint is made while the average of the weights is swapped in", group_->self());
  const auto throw_any = [&](const std::string& problem, bool names_ranks) {
    const auto problems = all_gather_object(*group_, problem);
    for (std::size_t rank = 0; rank < problems.size(); ++rank) {
      if (problems[rank].empty()) continue;
      if (names_ranks) throw DamagedState(problems[rank]);
      throw DamagedState(reported_by(fmt::format("rank {}", rank), "checkpoint",
                                     Error(ErrorCode::kCorrupt, problems[rank]))
                             .what());
    }
  };
  std::string problem;
  try {
    if (optimizer != nullptr) optimizer->verify_state();
    if (parts_.average != nullptr) parts_.average->verify();
    if (parts_.reducer != nullptr) parts_.reducer->verify();
    if (parts_.scaler != nullptr) parts_.scaler->state();
  } catch (const Error& error) {
    problem = error.what();
  }
  throw_any(problem, false);
  // If hosts divide the parameters, no parameter has a second copy to compare with.
  const bool divides_hosts = optimizer != nullptr && core_of(*optimizer).divides_parameters();
  if (!options_.compare_replicas || divides_hosts) return;
  std::vector<NamedParameter> parameters;
  for (const auto& item : module.named_parameters())
    parameters.push_back({item.key(), item.value().detach()});
  try {
    require_equal_replicas(*replicas_, std::move(parameters), state.step);
  } catch (const DamagedState& error) {
    if (!is_divided()) throw;
    problem = error.what();
  }
  if (!is_divided()) return;
  throw_any(problem, true);
  std::vector<NamedParameter> whole;
  models::visit_parameters(
      module, [&](const std::string& name, at::Tensor& parameter, const auto& division) {
        if (!division) whole.push_back({name, parameter.detach()});
      });
  require_distinct_names(*group_, whole);
}

// The boxes that this rank saves.
RunShare CheckpointerCore::own_share() const {
  if (replicas_->rank() == 0) return RunShare::kFirst;
  return options_.compare_replicas ? RunShare::kAlike : RunShare::kOwnState;
}

// Collective. Adds the attached states, the ranks' random states, and the tensors that a
// communication hook keeps. Rank 0 holds all of them.
void CheckpointerCore::add_states_of_ranks(RunBoxes& run) const {
  const auto add_of_rank_0 = [&](const std::string& name, const at::Tensor& tensor) {
    if (group_->rank() != 0) return;
    run.tensors.push_back(tensor);
    run.boxes.push_back(box_of(name, tensor));
  };
  if (!parts_.states.empty()) {
    on_rank(0, *group_, [&] {
      for (const AttachedState& state : parts_.states) {
        const std::string bytes = detail::save_state(state);
        const at::Tensor row = at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte);
        std::ranges::copy(bytes, static_cast<char*>(row.data_ptr()));
        add_of_rank_0(kStates + state.name, row);
      }
    });
  }
  const auto states = gather(*group_, random_generator().get_state(), 0);
  if (group_->rank() == 0) add_of_rank_0(kRandomStates, at::stack(states));
  if (parts_.reducer == nullptr) return;
  const HookState hook = parts_.reducer->hook_state();
  if (is_divided() && (!hook.shared.empty() || !hook.owed.empty())) {
    fail(ErrorCode::kUnsupported,
         "{}: a communication hook that keeps tensors between passes cannot be saved if a "
         "model is divided among ranks",
         group_->self());
  }
  for (const auto& [name, tensor] : gather_hook_state(*group_, hook, 0))
    add_of_rank_0(kHookTensors + name, tensor.contiguous());
}

bool CheckpointerCore::save(const TrainingState& state, const torch::nn::Module& module,
                            const optim::Optimizer& optimizer) {
  return save(state, module, &optimizer);
}

bool CheckpointerCore::save(const TrainingState& state, const torch::nn::Module& module,
                            const optim::Optimizer* optimizer) {
  engine(*group_).enter(kSave);
  require_sound(state, module, optimizer);
  RunBoxes run = boxes_of_rank(module, optimizer, parts_, own_share());
  add_states_of_ranks(run);
  team_.save(state.step, run.boxes,
             {.run = mark_.run, .metadata = words_of(state, optimizer, parts_)});
  return ask_rank_0(*group_, [&] { return is_written(team_.take_error()); });
}

bool CheckpointerCore::finish() {
  engine(*group_).enter(kFinish);
  const std::optional<Error> error = team_.finish();
  return ask_rank_0(*group_, [&] { return is_written(error); });
}

std::optional<int> CheckpointerCore::checkpoints_that_fit() const {
  return team_.directory() != nullptr ? team_.directory()->room() : std::nullopt;
}

bool CheckpointerCore::save_to_memory(const TrainingState& state, const torch::nn::Module& module,
                                      const optim::Optimizer& optimizer) {
  return save_to_memory(state, module, &optimizer);
}

bool CheckpointerCore::save_to_memory(const TrainingState& state, const torch::nn::Module& module,
                                      const optim::Optimizer* optimizer) {
  check(memory_.has_value(),
        "{}: save_to_memory() needs CheckpointOptions::memory, which is not set", group_->self());
  engine(*group_).enter(kSaveToMemory);
  require_sound(state, module, optimizer);
  RunBoxes run = boxes_of_rank(module, optimizer, parts_, own_share());
  add_states_of_ranks(run);
  CheckpointMetadata words{.run = mark_.run, .metadata = words_of(state, optimizer, parts_)};
  if (mark_.job) words.metadata[kJobWord] = *mark_.job;
  return memory_->save(state.step, run.boxes, words);
}

// Checkpointer passes every call to CheckpointerCore.

Checkpointer::Checkpointer(std::shared_ptr<ProcessGroup> group, const CheckpointOptions& options)
    : core_(new CheckpointerCore(std::move(group), options)) {}

Checkpointer::~Checkpointer() = default;

void Checkpointer::attach(const RunParts& parts) { core_->attach(parts); }

void Checkpointer::attach(const std::string& name, std::shared_ptr<torch::nn::Module> module) {
  core_->attach(name, std::move(module));
}

void Checkpointer::attach(const std::string& name, optim::Optimizer& optimizer) {
  core_->attach(name, optimizer);
}

void Checkpointer::attach(const std::string& name, optim::ExponentialMovingAverage& average) {
  core_->attach(name, average);
}

void Checkpointer::attach(const std::string& name, torch::optim::Optimizer& optimizer) {
  core_->attach(name, optimizer);
}

void Checkpointer::attach(const std::string& name, torch::optim::StepLR& schedule) {
  core_->attach(name, schedule);
}

void Checkpointer::attach(const std::string& name, data::DataLoader& loader) {
  core_->attach(name, loader);
}

void Checkpointer::attach_reducer(Reducer& reducer) { core_->attach_reducer(reducer); }

void Checkpointer::add_state(AttachedState state) { core_->add_state(std::move(state)); }

std::int64_t Checkpointer::begin(std::uint64_t seed) { return core_->begin(seed); }

bool Checkpointer::save(std::int64_t step) { return core_->save(step); }

bool Checkpointer::save_to_memory(std::int64_t step) { return core_->save_to_memory(step); }

std::optional<RestoredRun> Checkpointer::begin(torch::nn::Module& module,
                                               optim::Optimizer& optimizer, std::uint64_t seed) {
  return core_->begin(module, optimizer, seed);
}

bool Checkpointer::save(const TrainingState& state, const torch::nn::Module& module,
                        const optim::Optimizer& optimizer) {
  return core_->save(state, module, optimizer);
}

bool Checkpointer::save_to_memory(const TrainingState& state, const torch::nn::Module& module,
                                  const optim::Optimizer& optimizer) {
  return core_->save_to_memory(state, module, optimizer);
}

std::optional<RestoredRun> Checkpointer::restore(torch::nn::Module& module,
                                                 optim::Optimizer& optimizer) {
  return core_->restore(module, optimizer);
}

std::uint64_t Checkpointer::bytes_read() const { return core_->bytes_read(); }

bool Checkpointer::finish() { return core_->finish(); }

std::optional<int> Checkpointer::checkpoints_that_fit() const {
  return core_->checkpoints_that_fit();
}

}  // namespace paceline::train
