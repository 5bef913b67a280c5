#include "paceline/training/train/pipeline_gradients.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <span>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/log.h"
#include "paceline/training/optim/optimizer_core.h"
#include "paceline/training/optim/parameters/parameter_home.h"
#include "paceline/training/tensor/collectives.h"
#include "paceline/training/tensor/tensor_call.h"
#include "paceline/training/tensor/tensor_marks.h"
#include "paceline/training/tensor/tensor_view.h"
#include "paceline/training/train/loop.h"

namespace paceline::train {
namespace {

using Seconds = std::chrono::duration<double>;

void add_times(const PipelineStep& step, PhaseTimes::Clock::time_point begin, PhaseTimes& times) {
  const auto at = [&](double seconds) {
    return begin + std::chrono::duration_cast<PhaseTimes::Clock::duration>(Seconds(seconds));
  };
  double busy = 0;
  for (const auto& [action, begin_s, end_s] : step.actions) {
    const bool is_forward = action.kind == pipeline::Action::Kind::kForward;
    times.add(is_forward ? Phase::kForward : Phase::kBackward, at(begin_s), at(end_s));
    busy += end_s - begin_s;
  }
  times.add(Phase::kCommunication,
            std::max(0.0, Seconds(PhaseTimes::Clock::now() - begin).count() - busy));
}

}  // namespace

// A batch cut into micro-batches for the pipeline.
struct PipelineGradients::MicroBatches {
  MicroBatches(const data::Batch& batch, int count) : samples(batch.data.size(0)) {
    for (int i = 0; i < count; ++i) {
      const std::int64_t begin = i * samples / count, end = (i + 1) * samples / count;
      shares.push_back(static_cast<double>(end - begin) / static_cast<double>(samples));
      parts.push_back(
          part_of(batch, begin < end ? begin : 0, std::max<std::int64_t>(end - begin, 1)));
    }
  }

  std::int64_t samples;
  std::vector<data::Batch> parts;
  std::vector<double> shares;  // [part]: its share of the samples; 0: the part has the weight 0
};

PipelineGradients::PipelineGradients(Pipeline& pipeline, Loss loss, optim::Optimizer& optimizer,
                                     const PipelineGradientsOptions& options)
    : pipeline_(pipeline), loss_(std::move(loss)), optimizer_(optimizer), options_(options) {
  if (!options_.replicas) return;
  {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : optimizer_.parameters())
      broadcast(*options_.replicas, parameter.detach(), 0);
  }
  const auto sharded = paceline::detail::sharded_options(optimizer_, options_.shard);
  if (sharded.optimizer != nullptr) core_of(optimizer_).shard(options_.replicas, *sharded.shard);
}

std::vector<Pipeline::Tensors> PipelineGradients::inputs_of(const MicroBatches& all) const {
  std::vector<Pipeline::Tensors> inputs;
  if (!pipeline_.has_first_stage()) return inputs;
  for (const data::Batch& part : all.parts) inputs.push_back({part.data});
  return inputs;
}

// Returns the weight of a micro-batch that has this share of the batch's samples: a mean is
// weighted by the share, a sum is not.
double PipelineGradients::weight_of_part(double share) const {
  return options_.count && share > 0 ? 1 : share;
}

void PipelineGradients::weigh(std::span<data::Batch> step) {
  weigh_by_count(step, options_.count, options_.replicas.get());
}

void PipelineGradients::add(const data::Batch& batch, const ScaleLoss& scale, PhaseTimes& times) {
  const int count = pipeline_.schedule().num_micro_batches;
  const MicroBatches all(batch, count);
  std::vector<at::Tensor> losses(static_cast<std::size_t>(count));
  const auto begin = PhaseTimes::Clock::now();
  last_step_ = pipeline_.step(inputs_of(all), [&](const Pipeline::Tensors& outputs, int i) {
    const auto number = static_cast<std::size_t>(i);
    const at::Tensor loss = loss_(outputs, all.parts[number]);
    losses[number] = loss.detach();
    // Multiplied by `count`, because the pipeline divides by the number of micro-batches.
    const double weight = batch.weight * weight_of_part(all.shares[number]) * count;
    const at::Tensor weighted = weight == 1 ? loss : loss * weight;
    return scale ? scale(weighted) : weighted;
  });
  add_times(last_step_, begin, times);
  core_of(optimizer_).take_exposed_seconds();  // dropped: already in the times of the passes
  const auto timed = times.measure(Phase::kCommunication);
  note_losses(all, losses, batch.weight);
  if (!batch.ends_step) return;
  const auto found = share_losses();
  step_loss_ = 0;
  for (const ReplicaLoss& replica : found)
    step_loss_ += replica.weighted / static_cast<double>(found.size());
  report_non_finite(found);
  average();
  ++num_steps_;
}

at::Tensor PipelineGradients::evaluate(const data::Batch& batch) {
  const MicroBatches all(batch, pipeline_.schedule().num_micro_batches);
  const auto losses =
      pipeline_.evaluate(inputs_of(all), [&](const Pipeline::Tensors& outputs, int i) {
        return loss_(outputs, all.parts[static_cast<std::size_t>(i)]);
      });
  double loss = 0;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    if (all.shares[i] > 0) loss += weight_of_part(all.shares[i]) * losses[i].item<double>();
  }
  pipeline_.group()->broadcast(std::span(&loss, 1), pipeline_.last_stage_rank());
  return at::scalar_tensor(loss, at::kDouble);
}

void PipelineGradients::note_losses(const MicroBatches& all, const std::vector<at::Tensor>& losses,
                                    double weight) {
  if (!has_losses()) return;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    if (all.shares[i] == 0) continue;
    const auto loss = losses[i].item<double>();
    own_loss_.weighted += weight * weight_of_part(all.shares[i]) * loss;
    if (own_loss_.not_finite < 0 && !std::isfinite(loss))
      own_loss_.not_finite = static_cast<double>(i);
  }
}

// Returns the losses of all replicas on every rank: first the ranks of last stages exchange them,
// then each of these ranks sends all losses to the other ranks of its pipeline.
std::vector<PipelineGradients::ReplicaLoss> PipelineGradients::share_losses() {
  ProcessGroup* const replicas = options_.replicas.get();
  std::vector<ReplicaLoss> found(
      static_cast<std::size_t>(replicas != nullptr ? replicas->world_size() : 1));
  const std::span<double> numbers(&found.front().weighted, 2 * found.size());
  const ReplicaLoss own = std::exchange(own_loss_, {});
  if (has_losses()) {
    found.front() = own;
    if (replicas != nullptr) replicas->all_gather(numbers, std::span(&own.weighted, 2));
  }
  pipeline_.group()->broadcast(numbers, pipeline_.last_stage_rank());
  return found;
}

void PipelineGradients::report_non_finite(const std::vector<ReplicaLoss>& found) {
  for (std::size_t replica = 0; replica < found.size(); ++replica) {
    const auto [loss, micro_batch] = found[replica];
    if (micro_batch < 0) continue;
    const std::string what =
        fmt::format("the loss of micro-batch {} in replica {} of {} is not finite in step {} ({})",
                    micro_batch, replica, found.size(), num_steps_ + 1, loss);
    const ProcessGroup& group = *pipeline_.group();
    if (options_.non_finite == NonFinite::kError)
      fail(ErrorCode::kInvalid, "{}: {}", group.self(), what);
    const bool is_logged = options_.non_finite == NonFinite::kReport &&
                           std::has_single_bit(++num_non_finite_) &&
                           group.world_ranks()[static_cast<std::size_t>(group.rank())] == 0;
    if (is_logged) log::warning(fmt::format("{}; {} steps so far", what, num_non_finite_));
    return;
  }
}

void PipelineGradients::average() {
  const at::NoGradGuard no_grad;
  if (options_.tied != nullptr) options_.tied->add_gradients();
  if (!options_.replicas || options_.replicas->world_size() == 1) return;
  const std::vector<bool> used = used_parameters();
  const auto& parameters = optimizer_.parameters();
  std::vector<at::Tensor> gradients;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!used[i]) continue;
    at::Tensor& gradient = own_gradient(parameters[i]);
    if (!gradient.defined()) gradient = at::zeros_like(parameters[i]);
    gradients.push_back(gradient);
  }
  core_of(optimizer_).shards_gradients() ? average_parts(used) : average_whole(gradients);
}

// Returns for each of the optimizer's parameters whether any replica has a gradient for it.
std::vector<bool> PipelineGradients::used_parameters() {
  std::vector<std::int32_t> used;
  for (const at::Tensor& parameter : optimizer_.parameters())
    used.push_back(own_gradient(parameter).defined() ? 1 : 0);
  options_.replicas->all_reduce(std::span(used), ReduceOp::kMax);
  return {used.begin(), used.end()};
}

void PipelineGradients::average_whole(const std::vector<at::Tensor>& gradients) {
  std::map<at::ScalarType, std::vector<at::Tensor>> small;
  for (const at::Tensor& gradient : gradients) {
    if (gradient.nbytes() >= kAloneBytes) {
      all_reduce(*options_.replicas, gradient, ReduceOp::kMean);
    } else {
      small[gradient.scalar_type()].push_back(gradient);
    }
  }
  for (const auto& [type, tensors] : small)
    all_reduce_coalesced(*options_.replicas, tensors, ReduceOp::kMean);
}

// Averages the gradients so that each rank gets the means of the part that it updates.
void PipelineGradients::average_parts(const std::vector<bool>& used) {
  const auto& parameters = optimizer_.parameters();
  for (const optim::GradientUnit& unit : core_of(optimizer_).gradient_units()) {
    const at::Tensor flat =
        at::zeros({unit.layout.count()},
                  parameters[unit.parameters.front()].options().dtype(unit.layout.type()));
    bool adds = false;
    for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
      const std::size_t number = unit.parameters[i];
      if (!used[number]) continue;
      at::Tensor& gradient = own_gradient(parameters[number]);
      unit.layout.place(flat, i, parameters[number]).copy_(gradient);
      gradient = at::Tensor();
      adds = adds || core_of(optimizer_).has_gradient(number);
    }
    const at::Tensor own = reduce_scatter(*options_.replicas, flat, ReduceOp::kMean);
    at::Tensor part = core_of(optimizer_).gradient_part(unit.number);
    adds ? part.add_(own) : part.copy_(own);
  }
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (used[i]) core_of(optimizer_).set_has_gradient(i);
  }
}

}  // namespace paceline::train
