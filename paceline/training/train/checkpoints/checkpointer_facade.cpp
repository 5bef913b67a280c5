// Checkpointer passes every call to CheckpointerCore.

#include "paceline/training/train/checkpoints/checkpointer.h"
#include "paceline/training/train/checkpoints/checkpointer_core.h"
#include "paceline/training/train/run_parts.h"

namespace paceline::train {

Checkpointer::Checkpointer(std::shared_ptr<ProcessGroup> group, const CheckpointOptions& options)
    : core_(new CheckpointerCore(std::move(group), options)) {}

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
