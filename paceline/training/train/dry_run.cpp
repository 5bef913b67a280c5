#include "paceline/training/train/dry_run.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include <ATen/Parallel.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/timing.h"
#include "paceline/planning/forecast/memory_plan.h"
#include "paceline/training/parallel/reducer/gradient_buckets.h"
#include "paceline/training/pipeline/measure_layers.h"
#include "paceline/training/tensor/tensor_allocator.h"
#include "paceline/training/tensor/tensor_memory.h"
#include "paceline/training/tensor/tensor_view.h"
#include "paceline/training/train/loop.h"
#include "paceline/training/train/run_report.h"

namespace paceline::train {

namespace {

constexpr int kRepeats = 5;
constexpr std::size_t kFewestCalls = 5, kMaxCalls = 100;
constexpr double kSecondsOfCalls = 0.3;

planning::PassCost difference(const planning::PassCost& whole, const planning::PassCost& part) {
  return {.fixed_s = std::max(0.0, whole.fixed_s - part.fixed_s),
          .sample_s = std::max(0.0, whole.sample_s - part.sample_s)};
}

}  // namespace

std::vector<planning::LayerProfile> profile_layers(ProcessGroup& group, const LayerChain& chain,
                                                   std::int64_t samples) {
  check(samples >= 1, "{} samples to measure layers with; at least one is needed", samples);
  const std::int64_t few_samples = std::max<std::int64_t>(1, samples / 4);
  const auto measure = [&](std::int64_t count) {
    return measure_layers(group, chain.layers, {chain.make_input(count)}, chain.loss, kRepeats);
  };
  const auto many = measure(samples);
  const auto few = few_samples < samples ? measure(few_samples) : many;
  const auto memory =
      measure_layer_memory(group, chain.layers, {chain.make_input(samples)}, chain.loss);
  std::vector<planning::LayerProfile> profiles(chain.layers.size());
  const auto cost = [&](double seconds_of_few, double seconds_of_many) {
    const auto n = static_cast<double>(few_samples), m = static_cast<double>(samples);
    if (few_samples == samples) return planning::PassCost{.sample_s = seconds_of_many / m};
    return planning::line_through(n, seconds_of_few, m, seconds_of_many);
  };
  for (std::size_t i = 0; i < profiles.size(); ++i) {
    planning::LayerProfile& profile = profiles[i];
    profile.forward = cost(few[i].forward_s, many[i].forward_s);
    profile.backward = cost(few[i].backward_s, many[i].backward_s);
    profile.input_half = cost(few[i].input_half_s, many[i].input_half_s);
    profile.weight_half = cost(few[i].weight_half_s, many[i].weight_half_s);
    profile.add_s = many[i].add_s;
    for (const at::Tensor& parameter : chain.layers[i].parameters)
      profile.parameters += parameter.numel();
    profile.activation_bytes = memory[i].activation_bytes / static_cast<double>(samples);
    profile.deferred_bytes = memory[i].deferred_bytes / static_cast<double>(samples);
    profile.output_bytes = memory[i].output_bytes / static_cast<double>(samples);
  }
  return profiles;
}

planning::LayerProfile subtract(planning::LayerProfile whole, const planning::LayerProfile& part) {
  whole.forward = difference(whole.forward, part.forward);
  whole.backward = difference(whole.backward, part.backward);
  for (auto half : {&planning::LayerProfile::input_half, &planning::LayerProfile::weight_half}) {
    if (whole.*half && part.*half) whole.*half = difference(*(whole.*half), *(part.*half));
  }
  whole.add_s = std::max(0.0, whole.add_s - part.add_s);
  const double deferred = whole.deferred() - part.deferred();
  whole.activation_bytes = std::max(0.0, whole.activation_bytes - part.activation_bytes);
  whole.deferred_bytes = std::max(0.0, deferred);
  whole.parameters = std::max<std::int64_t>(0, whole.parameters - part.parameters);
  return whole;
}

double least_seconds(const std::function<void()>& body) {
  body();
  std::vector<double> seconds;
  const RunningTimer all;
  while (seconds.size() < kFewestCalls ||
         (seconds.size() < kMaxCalls && all.wall_seconds() < kSecondsOfCalls)) {
    const RunningTimer call;
    body();
    seconds.push_back(call.seconds());
  }
  return *std::min_element(seconds.begin(), seconds.end());
}

namespace {

constexpr int kWarmUpPasses = 3;
constexpr int kFewestPasses = 5, kMaxPasses = 50;
constexpr double kSecondsOfPasses = 1.5;

struct StepSeconds {
  double forward = 0, backward = 0, other = 0, optimizer = 0, data = 0;
};

class DryRun {
 public:
  DryRun(ProcessGroup& group, const DryRunParts& parts)
      : group_(group), parts_(parts), batches_(parts.loader.epoch(0)) {}

  planning::JobProfile run() {
    take_batch();
    const std::int64_t samples = batch_.data.size(0);
    for (int i = 0; i < kWarmUpPasses; ++i) step(samples);
    const RunningTimer timer;
    step(samples);
    num_passes_ = agreed_passes(timer.wall_seconds());
    measure_memory(samples);
    measure_times(samples);
    describe(samples);
    return profile_;
  }

 private:
  // Takes the first batch of an epoch, and counts the samples of all ranks in a step.
  void take_batch() {
    std::int64_t samples = 0;
    while (auto batch = batches_.next()) {
      samples += batch->data.size(0);
      const bool is_last = batch->ends_step;
      if (!batch_.data.defined()) batch_ = std::move(*batch);
      if (is_last) break;
    }
    check(batch_.data.defined(), "{}: there are no batches to measure with", group_.self());
    profile_.samples_per_step = all_reduce_value(group_, samples);
  }

  int agreed_passes(double seconds_of_one) const {
    const double wanted = kSecondsOfPasses / std::max(seconds_of_one, 1e-6);
    const int passes = static_cast<int>(std::clamp<double>(wanted, kFewestPasses, kMaxPasses));
    return all_reduce_value(group_, passes, ReduceOp::kMax);
  }

  StepSeconds step(std::int64_t samples) {
    StepSeconds seconds;
    data::Batch batch = part_of(batch_, 0, samples);
    batch.weight = 1;
    batch.ends_step = false;  // so that nothing is communicated
    PhaseTimes times;
    const RunningTimer passes;
    parts_.gradients.add(batch, {}, times);
    const double all = passes.seconds(), running = all / passes.wall_seconds();
    seconds.forward = running * times.seconds(Phase::kForward);
    seconds.backward = running * times.seconds(Phase::kBackward);
    seconds.other = all - seconds.forward - seconds.backward;
    const RunningTimer optimizer;
    parts_.optimizer.step();
    parts_.optimizer.zero_grad();
    seconds.optimizer = optimizer.seconds();
    return seconds;
  }

  double wait_for_batch() {
    const RunningTimer timer;
    const bool has_batch = batches_.next().has_value();
    const double seconds = timer.seconds();
    if (!has_batch) batches_ = parts_.loader.epoch(++epoch_);
    return has_batch ? seconds : 0;
  }

  // Returns the medians of each rank's times, averaged over all ranks.
  StepSeconds measure(std::int64_t samples) {
    std::vector<double> forward, backward, other, optimizer, data;
    group_.barrier();
    for (int i = 0; i < num_passes_; ++i) {
      data.push_back(wait_for_batch());
      const StepSeconds seconds = step(samples);
      forward.push_back(seconds.forward);
      backward.push_back(seconds.backward);
      other.push_back(seconds.other);
      optimizer.push_back(seconds.optimizer);
    }
    std::vector<double> medians = {median(forward), median(backward), median(other),
                                   median(optimizer), median(data)};
    group_.all_reduce(std::span(medians), ReduceOp::kMean);
    return {medians[0], medians[1], medians[2], medians[3], medians[4]};
  }

  void measure_times(std::int64_t samples) {
    const auto few = std::max<std::int64_t>(1, samples / 4);
    const StepSeconds of_many = measure(samples);
    const StepSeconds of_few = few < samples ? measure(few) : of_many;
    const auto line = [&](double seconds_of_few, double seconds_of_many) {
      const auto n = static_cast<double>(few), m = static_cast<double>(samples);
      if (few == samples) return planning::PassCost{.sample_s = seconds_of_many / m};
      return planning::line_through(n, seconds_of_few, m, seconds_of_many);
    };
    model_.forward = line(of_few.forward, of_many.forward);
    model_.backward = line(of_few.backward, of_many.backward);
    for (const at::Tensor& parameter : parts_.optimizer.parameters())
      model_.parameters += parameter.numel();
    const auto parameters = static_cast<double>(std::max<std::int64_t>(1, model_.parameters));
    profile_.optimizer_s_per_parameter = of_many.optimizer / parameters;
    profile_.optimizer_bytes = static_cast<double>(parts_.optimizer.num_state_bytes()) / parameters;
    profile_.data_s = of_many.data;
    profile_.other_s = of_many.other;
  }

  // Measures the peak of the tensors that a step makes, and the memory of the process without this
  // peak, the parameters and the optimizer's state.
  void measure_memory(std::int64_t samples) {
    const auto parameter_bytes = static_cast<double>(total_bytes(parts_.optimizer.parameters()));
    double peak = 0;
    {
      const TensorMemoryMeter meter;
      step(samples);
      peak = static_cast<double>(meter.peak());
    }
    peak_bytes_ = peak;
    const auto memory = own_memory();
    check(memory.has_value(), "{}: /proc/self does not show the memory of this process",
          group_.self());
    const auto state = static_cast<double>(parts_.optimizer.num_state_bytes());
    profile_.process_bytes = std::max(0.0, memory->own() - parameter_bytes - state - peak);
    profile_.library_bytes = memory->files;
  }

  void describe(std::int64_t samples) {
    profile_.unit = parts_.unit.name;
    profile_.units_per_sample = static_cast<double>(parts_.unit.per_sample);
    profile_.threads = at::get_num_threads();
    profile_.ranks_at_once = group_.world_size();
    profile_.bucket_bytes = bucket_bytes();
    if (parts_.describe) parts_.describe(profile_, samples);
    if (profile_.layers.empty()) {
      model_.name = "model";
      model_.activation_bytes =
          std::max(0.0, peak_bytes_ / static_cast<double>(samples) -
                            static_cast<double>(model_.parameters) * profile_.gradient_bytes /
                                static_cast<double>(samples));
      profile_.layers.push_back(model_);
    } else {
      scale_layers(samples);
    }
    // The part of the peak that is not in the layers' numbers.
    const double planned = planning::peak_of_pass(profile_, {}, {0, profile_.layers.size()},
                                                  static_cast<double>(samples));
    profile_.working_bytes = std::max(0.0, peak_bytes_ - planned) / static_cast<double>(samples);
  }

  // Large gradients are sent alone as soon as they are ready, so a model that mostly has large
  // gradients does not wait for buckets to fill.
  double bucket_bytes() const {
    std::size_t alone = 0;
    for (const at::Tensor& parameter : parts_.optimizer.parameters()) {
      if (parameter.nbytes() >= kAloneBytes) alone += parameter.nbytes();
    }
    const std::size_t all = total_bytes(parts_.optimizer.parameters());
    return static_cast<double>(2 * alone >= all ? kAloneBytes : BucketLimits().cap_bytes);
  }

  // Scales the costs of the layers, which were measured one at a time, so that their sum equals the
  // cost of the whole model.
  void scale_layers(std::int64_t samples) {
    const auto n = static_cast<double>(samples);
    double forward = 0, backward = 0;
    for (const planning::LayerProfile& layer : profile_.layers) {
      forward += layer.forward.of(n);
      backward += layer.backward.of(n);
    }
    const auto scale = [](planning::PassCost& cost, double factor) {
      cost.fixed_s *= factor;
      cost.sample_s *= factor;
    };
    for (planning::LayerProfile& layer : profile_.layers) {
      if (forward > 0) scale(layer.forward, model_.forward.of(n) / forward);
      if (backward <= 0) continue;
      for (planning::PassCost* const cost :
           {&layer.backward, layer.input_half ? &*layer.input_half : nullptr,
            layer.weight_half ? &*layer.weight_half : nullptr}) {
        if (cost != nullptr) scale(*cost, model_.backward.of(n) / backward);
      }
    }
  }

  ProcessGroup& group_;
  const DryRunParts& parts_;
  data::Epoch batches_;
  data::Batch batch_;
  int num_passes_ = kFewestPasses;
  std::int64_t epoch_ = 0;
  planning::LayerProfile model_;  // the whole model as one layer
  double peak_bytes_ = 0;         // the peak of the tensors that a step makes
  planning::JobProfile profile_;
};

}  // namespace

std::optional<std::filesystem::path> wanted_profile() {
  const char* const file = std::getenv("PACELINE_PROFILE");
  if (file == nullptr || *file == '\0') return std::nullopt;
  return file;
}

planning::JobProfile dry_run(ProcessGroup& group, const DryRunParts& parts) {
  return DryRun(group, parts).run();
}

}  // namespace paceline::train
