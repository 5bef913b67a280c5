#include "paceline/training/train/loop.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/telemetry/step_log.h"
#include "paceline/training/optim/optimizer_core.h"
#include "paceline/training/parallel/reducer/reducer.h"
#include "paceline/training/tensor/random.h"
#include "paceline/training/tensor/tensor_view.h"

namespace paceline::train {

CountFunction CountedLoss::targets_except(std::int64_t ignored, const at::Tensor& class_weights) {
  return [=](const data::Batch& batch) {
    const at::Tensor counts = batch.target.ne(ignored);
    if (!class_weights.defined()) return static_cast<double>(counts.sum().item<std::int64_t>());
    return class_weights.to(at::kDouble)
        .index({batch.target.masked_select(counts)})
        .sum()
        .item<double>();
  };
}

CountedLoss CountedLoss::over_all_targets(LossFunction mean) {
  const auto count = [](const data::Batch& batch) {
    return static_cast<double>(batch.target.numel());
  };
  return {.sum = [mean = std::move(mean),
                  count](const data::Batch& batch) { return mean(batch) * count(batch); },
          .count = count};
}

// The counts of logical shards are kept apart and added up in the shards' order, so that the
// weights have the same bits for every number of ranks.
void weigh_by_count(std::span<data::Batch> step, const CountFunction& count, ProcessGroup* replicas,
                    std::int64_t logical_shards) {
  const int rank = replicas != nullptr ? replicas->rank() : 0;
  std::optional<double> wrong;
  std::vector<double> counts(logical_shards > 0 ? static_cast<std::size_t>(logical_shards) : 1);
  for (const data::Batch& batch : step) {
    if (batch.weight == 0) continue;
    const auto place = static_cast<std::size_t>(logical_shards > 0 ? batch.shard : 0);
    const double one = count(batch);
    if (!std::isfinite(one) || one < 0) wrong = one;
    counts.at(place) += one;
  }
  if (wrong) counts[0] = std::nan("");  // the all-reduce passes the NaN to all ranks
  if (replicas != nullptr) replicas->all_reduce(std::span(counts));
  const double all = std::accumulate(counts.begin(), counts.end(), 0.0);
  check(!wrong, "rank {}: the count of a batch's loss is {}; it must be finite and not negative",
        rank, wrong.value_or(0));
  check(std::isfinite(all),
        "rank {}: the count of a batch's loss on another rank is negative or not finite; that rank "
        "reports which",
        rank);
  const int ranks = replicas != nullptr ? replicas->world_size() : 1;
  const auto parts = static_cast<double>(logical_shards > 0 ? logical_shards : ranks);
  for (data::Batch& batch : step) {
    if (batch.weight != 0) batch.weight = all > 0 ? parts / all : 0;
  }
}

data::Batch part_of(const data::Batch& batch, std::int64_t begin, std::int64_t count) {
  data::Batch part{.weight = batch.weight, .ends_step = batch.ends_step};
  for (const at::Tensor& tensor : batch.tensors)
    part.tensors.push_back(tensor.narrow(0, begin, count));
  part.data = batch.data.narrow(0, begin, count);
  if (batch.target.defined()) part.target = batch.target.narrow(0, begin, count);
  for (std::int64_t i = begin; i < begin + count; ++i) {
    if (i < static_cast<std::int64_t>(batch.indices.size()))
      part.indices.push_back(batch.indices[static_cast<std::size_t>(i)]);
  }
  return part;
}

BackwardPasses::BackwardPasses(LossFunction loss, Reducer& gradients)
    : loss_(std::move(loss)), gradients_(gradients) {}

BackwardPasses::BackwardPasses(CountedLoss loss, Reducer& gradients)
    : loss_(std::move(loss.sum)), count_(std::move(loss.count)), gradients_(gradients) {}

void BackwardPasses::weigh(std::span<data::Batch> step) {
  if (count_) weigh_by_count(step, count_, &gradients_.group(), gradients_.logical_shards());
}

at::Tensor BackwardPasses::loss_of(const data::Batch& batch) const {
  try {
    return loss_(batch);
  } catch (const c10::Error& error) {
    // The beginning of LibTorch's message for a normalisation over one value
    // (torch/nn/functional/batchnorm.h).
    constexpr std::string_view kOneValue = "Expected more than 1 value per channel";
    const std::string_view what = error.what_without_backtrace();
    if (batch.data.size(0) != 1 || what.find(kOneValue) == std::string_view::npos) throw;
    fail(ErrorCode::kInvalid,
         "{}: a batch of 1 sample was left at the end of the epoch, and batch normalisation "
         "needs more: leave out a last batch that is not full (DataLoaderOptions::drop_last, "
         "--drop-last), or choose another batch size: {}",
         gradients_.group().self(), what);
  }
}

void BackwardPasses::add(const data::Batch& batch, const ScaleLoss& scale, PhaseTimes& times) {
  const auto begin_forward = PhaseTimes::Clock::now();
  const at::Tensor loss = loss_of(batch);
  gradients_.note_loss(loss.item<double>() * batch.weight);
  times.add_with_waiting(Phase::kForward, begin_forward, gradients_.take_exposed_seconds());
  gradients_.set_synchronize(batch.ends_step);
  const at::Tensor weighted = batch.weight == 1 ? loss : loss * batch.weight;
  const auto begin = PhaseTimes::Clock::now();
  (scale ? scale(weighted) : weighted).backward();
  times.add_with_waiting(Phase::kBackward, begin, gradients_.take_exposed_seconds());
}

std::shared_ptr<StepGradients> detail::backward_passes(LossFunction loss, Reducer& gradients) {
  return std::make_shared<BackwardPasses>(std::move(loss), gradients);
}

std::shared_ptr<StepGradients> detail::backward_passes(CountedLoss loss, Reducer& gradients) {
  return std::make_shared<BackwardPasses>(std::move(loss), gradients);
}

namespace {

void step(optim::Optimizer& optimizer, PhaseTimes& times, const LoopHooks& hooks) {
  const auto begin = PhaseTimes::Clock::now();
  hooks.take_step ? hooks.take_step() : optimizer.step();
  optimizer.zero_grad();
  times.add_with_waiting(Phase::kOptimizer, begin, core_of(optimizer).take_exposed_seconds());
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

std::optional<data::Batch> next_batch(data::Epoch& epoch, PhaseTimes& times) {
  const auto timed = times.measure(Phase::kData);
  return epoch.next();
}

// Returns the batches that the loop passes to `gradients` together: the next batch of the step, or
// all batches of the step if their weights depend on each other. Empty at the end of the epoch.
std::vector<data::Batch> next_batches(data::Epoch& epoch, StepGradients& gradients,
                                      PhaseTimes& times) {
  std::vector<data::Batch> batches;
  do {
    auto batch = next_batch(epoch, times);
    if (!batch) break;
    batches.push_back(std::move(*batch));
  } while (gradients.weighs_steps() && !batches.back().ends_step);
  if (batches.empty() || !gradients.weighs_steps()) return batches;
  const auto timed = times.measure(Phase::kCommunication);
  gradients.weigh(batches);
  return batches;
}

// Returns, for instance, "step 3, samples 17, 4, 29 of labels.csv".
std::string describe_batch(const data::Batch& batch, std::int64_t step,
                           const std::string& dataset) {
  constexpr std::size_t kMaxNamed = 8;
  const auto& all = batch.indices;
  const std::span first(all.data(), std::min(all.size(), kMaxNamed));
  const std::string more =
      all.size() > kMaxNamed ? fmt::format(" and {} more", all.size() - kMaxNamed) : std::string();
  return fmt::format("step {}, samples {}{} of {}", step, fmt::join(first, ", "), more, dataset);
}

// Adds the gradients of step `step`. Returns the number of this rank's samples in it; nullopt at
// the end of the epoch. Adds the batch's sample numbers to an error of LibTorch, for instance about
// a label that the model does not have.
std::optional<std::int64_t> add_up_step(data::Epoch& epoch, const std::string& dataset,
                                        std::int64_t step, StepGradients& gradients,
                                        PhaseTimes& times, const LoopHooks& hooks) {
  std::int64_t samples = 0;
  for (bool has_ended = false; !has_ended;) {
    const auto batches = next_batches(epoch, gradients, times);
    if (batches.empty()) return {};
    for (const data::Batch& batch : batches) {
      if (batches.size() > 1 && batch.shard >= 0) seed_rank(batch.seed);
      try {
        gradients.add(batch, hooks.scale_loss, times);
      } catch (c10::Error& error) {
        error.add_context(describe_batch(batch, step, dataset));
        throw;
      }
      if (batch.weight > 0) samples += batch.data.size(0);
    }
    has_ended = batches.back().ends_step;
  }
  return samples;
}

// Stores the numbers of logical shards and threads in `state`. A resumed run has the bits of an
// uninterrupted one only if neither number changes.
void take_shards(TrainingState& state, const data::DataLoader& loader) {
  const std::int64_t shards = loader.logical_shards();
  check(state.step == 0 || state.logical_shards == shards,
        "the run to continue at step {} has {} logical shards, this job has {}: start it with "
        "--logical-shards {} (0: without), or begin a new run",
        state.step, state.logical_shards, shards, state.logical_shards);
  const std::int64_t threads = shards > 0 ? at::get_num_threads() : 0;
  if (state.step > 0 && state.num_threads != threads) {
    log::warning(
        fmt::format("the run that continues at step {} computed with {} threads a rank, this job "
                    "has {}: sums within a rank may have other bits (--threads-per-rank {})",
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
    data::Epoch epoch = loader.epoch(state.epoch, state.consumed);
    while (!finished()) {
      LoggedStep logged(step_log, times);
      const auto samples =
          add_up_step(epoch, loader.name(), state.step + 1, gradients, times, hooks);
      if (!samples) break;
      step(optimizer, times, hooks);
      ++state.step;
      logged.end(state.step, *samples);
      state.consumed = loader.consumed();
      if (hooks.after_step) hooks.after_step({state, gradients.step_loss(), *samples});
      if (hooks.stop_requested && hooks.stop_requested() && !was_last()) return LoopEnd::kStopped;
    }
    if (finished() && !loader.exhausted()) break;  // the loop ends in the middle of an epoch
    ++state.epoch;
    state.consumed = 0;
    if (hooks.after_epoch && hooks.after_epoch(state) == Next::kStop) break;
  }
  return LoopEnd::kDone;
}

}  // namespace paceline::train
