#include "paceline/training/train/loop.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/telemetry/step_log.h"
#include "paceline/training/tensor/random.h"
#include "paceline/training/tensor/tensor_view.h"

namespace paceline::train {
namespace {

void step(optim::Optimizer& optimizer, PhaseTimes& times, const LoopHooks& hooks) {
  const auto begin = PhaseTimes::Clock::now();
  hooks.take_step ? hooks.take_step() : optimizer.step();
  optimizer.zero_grad();
  times.add_with_waiting(Phase::kOptimizer, begin, optimizer.take_exposed_seconds());
}

// One line of the step log, from the beginning of a step to its end.
class LoggedStep {
 public:
  LoggedStep(StepLog& log, PhaseTimes& times)
      : log_(log), times_(times), waited_(times.seconds(Phase::kCommunication)) {}

  void end(std::int64_t step, std::int64_t samples) {
    times_.record_step(step, begin_);
    const auto now = PhaseTimes::Clock::now();
    log_.step(samples, std::chrono::duration<double>(now - begin_).count(),
              times_.seconds(Phase::kCommunication) - waited_);
  }

 private:
  StepLog& log_;
  PhaseTimes& times_;
  const double waited_;
  const PhaseTimes::Clock::time_point begin_ = PhaseTimes::Clock::now();
};

std::optional<data::Batch> next_batch(data::DataLoader& loader, PhaseTimes& times) {
  const auto timed = times.measure(Phase::kData);
  return loader.next();
}

// The batches that the loop gives to `gradients` at once: the next batch of the step, or all
// batches of the step where their weights depend on each other. Empty at the end of the epoch.
std::vector<data::Batch> next_batches(data::DataLoader& loader, StepGradients& gradients,
                                      PhaseTimes& times) {
  std::vector<data::Batch> batches;
  do {
    auto batch = next_batch(loader, times);
    if (!batch) break;
    batches.push_back(std::move(*batch));
  } while (gradients.weighs_steps() && !batches.back().ends_step);
  if (batches.empty() || !gradients.weighs_steps()) return batches;
  const auto timed = times.measure(Phase::kCommunication);
  gradients.weigh(batches);
  return batches;
}

// Returns the number of this rank's samples in the step; nothing at the end of the epoch.
std::optional<std::int64_t> add_up_step(data::DataLoader& loader, StepGradients& gradients,
                                        PhaseTimes& times, const LoopHooks& hooks) {
  std::int64_t samples = 0;
  for (bool has_ended = false; !has_ended;) {
    const auto batches = next_batches(loader, gradients, times);
    if (batches.empty()) return {};
    for (const data::Batch& batch : batches) {
      if (batches.size() > 1 && batch.shard >= 0) seed_rank(batch.seed);
      gradients.add(batch, hooks.scale_loss, times);
      if (batch.weight > 0) samples += batch.data.size(0);
    }
    has_ended = batches.back().ends_step;
  }
  return samples;
}

// A run that goes on has the bits of one that was not interrupted only if this stays as it was.
void take_shards(TrainingState& state, const data::DataLoader& loader) {
  const std::int64_t shards = loader.logical_shards();
  check(state.step == 0 || state.logical_shards == shards,
        "the run that is to go on at step {} has {} logical shards, this job {}: start it with "
        "--logical-shards {} (0: without), or begin a new run",
        state.step, state.logical_shards, shards, state.logical_shards);
  const std::int64_t threads = shards > 0 ? at::get_num_threads() : 0;
  if (state.step > 0 && state.num_threads != threads) {
    log::warning(fmt::format(
        "the run that goes on at step {} computed with {} threads a rank, this job has {}: sums "
        "within a rank may have other bits (--threads-per-rank {})",
        state.step, state.num_threads, threads, state.num_threads));
  }
  state.logical_shards = shards;
  state.num_threads = threads;
}

}  // namespace

LoopEnd run_loop(const LoopOptions& options, TrainingState& state, data::DataLoader& loader,
                 StepGradients& gradients, optim::Optimizer& optimizer, PhaseTimes& times,
                 const LoopHooks& hooks) {
  const auto finished = [&] { return options.max_steps > 0 && state.step >= options.max_steps; };
  const auto was_last = [&] {
    return finished() || (state.epoch + 1 == options.epochs && loader.exhausted());
  };
  take_shards(state, loader);
  StepLog step_log;
  step_log.model(static_cast<std::int64_t>(total_bytes(optimizer.parameters())));
  step_log.begin_at(state.step);
  gradients.begin_at(state.step);
  while (state.epoch < options.epochs && !finished()) {
    loader.begin_epoch(state.epoch, state.consumed);
    while (!finished()) {
      LoggedStep logged(step_log, times);
      const auto samples = add_up_step(loader, gradients, times, hooks);
      if (!samples) break;
      step(optimizer, times, hooks);
      ++state.step;
      logged.end(state.step, *samples);
      state.consumed = loader.consumed();
      if (hooks.after_step) hooks.after_step({state, gradients.step_loss(), *samples});
      if (hooks.stop_requested && hooks.stop_requested() && !was_last()) return LoopEnd::kStopped;
    }
    if (finished() && !loader.exhausted()) break;  // in the middle of an epoch
    ++state.epoch;
    state.consumed = 0;
    if (hooks.after_epoch) hooks.after_epoch(state);
  }
  return LoopEnd::kDone;
}

}  // namespace paceline::train
