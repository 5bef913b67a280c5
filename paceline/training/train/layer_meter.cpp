#include "paceline/training/train/layer_meter.h"

#include <algorithm>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/running_timer.h"
#include "paceline/training/pipeline/measure_layers.h"

namespace paceline::train {
namespace {

constexpr int kRepeats = 5;
constexpr std::size_t kFewestCalls = 5, kMostCalls = 100;
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

planning::LayerProfile without(planning::LayerProfile whole, const planning::LayerProfile& part) {
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
         (seconds.size() < kMostCalls && all.wall_seconds() < kSecondsOfCalls)) {
    const RunningTimer call;
    body();
    seconds.push_back(call.seconds());
  }
  return *std::min_element(seconds.begin(), seconds.end());
}

}  // namespace paceline::train
