#include "paceline/training/train/run_checkpoints.h"

namespace paceline::train {

RunCheckpoints::RunCheckpoints(std::shared_ptr<ProcessGroup> group,
                               const CheckpointOptions& options, torch::nn::Module& module,
                               optim::Optimizer& optimizer, PhaseTimes& times,
                               std::shared_ptr<ProcessGroup> replicas)
    : group_(std::move(group)),
      options_(options),
      module_(module),
      optimizer_(optimizer),
      times_(times) {
  if (options.folder.empty()) return;
  const std::string memory = options.memory_every > 0 ? memory_path() : std::string();
  checkpointer_.emplace(group_, options.folder,
                        CheckpointerOptions{.memory = memory, .replicas = std::move(replicas)});
}

std::optional<RestoredRun> RunCheckpoints::begin(const RunParts& parts, std::uint64_t seed) {
  checkpointer_->attach(parts);
  stop_.emplace(AgreedStopOptions{.file = options_.stop_file});
  auto restored = checkpointer_->begin(
      module_, optimizer_,
      {.resume = options_.resume, .other_run = options_.resume_other_run, .seed = seed});
  if (restored && !restored->from_memory) saved_step_ = restored->state.step;
  return restored;
}

void RunCheckpoints::after_step(const TrainingState& state) {
  if (!checkpointer_) return;
  const auto due = [&](std::int64_t every) { return every > 0 && state.step % every == 0; };
  if (due(options_.every)) save(state);
  if (!due(options_.memory_every)) return;
  const auto timed = times_.measure(Phase::kCheckpoint);
  checkpointer_->save_to_memory(state, module_, optimizer_);
}

void RunCheckpoints::after_epoch(const TrainingState& state) {
  if (checkpointer_ && options_.every == 0) save(state);
}

void RunCheckpoints::save(const TrainingState& state) {
  const auto timed = times_.measure(Phase::kCheckpoint);
  // Otherwise finish() tries again, because it is not known whether this save or an earlier one
  // failed.
  if (checkpointer_->save(state, module_, optimizer_)) saved_step_ = state.step;
}

bool RunCheckpoints::finish(const TrainingState& state) {
  if (!checkpointer_) return true;
  if (saved_step_ != state.step) save(state);
  const auto timed = times_.measure(Phase::kCheckpoint);
  return checkpointer_->finish();
}

std::optional<int> RunCheckpoints::room_on_disk() const {
  return checkpointer_ ? checkpointer_->room_on_disk() : std::nullopt;
}

}  // namespace paceline::train
