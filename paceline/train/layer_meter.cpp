#include "paceline/train/layer_meter.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include <torch/torch.h>

#include "paceline/core/check.h"
#include "paceline/tensor/tensor_memory_meter.h"
#include "paceline/train/repeated_timing.h"

namespace paceline::train {
namespace {

using TimingClock = std::chrono::steady_clock;

constexpr std::size_t kFewestCalls = 5, kMostCalls = 100;
constexpr double kSecondsOfCalls = 0.3;

struct Pass {
  double forward_s = 0, backward_s = 0;
  double kept_bytes = 0, output_bytes = 0;
};

Pass one_pass(const MeasuredLayer& layer, at::Tensor input) {
  for (auto& parameter : layer.module.parameters()) parameter.mutable_grad() = at::Tensor();
  if (input.is_floating_point()) input = input.detach().requires_grad_();
  const TensorMemoryMeter memory;
  Pass pass;
  auto begin = TimingClock::now();
  const at::Tensor output = layer.forward(input);
  pass.forward_s = seconds_since(begin);
  pass.kept_bytes = static_cast<double>(memory.bytes());
  pass.output_bytes = static_cast<double>(output.nbytes());
  const at::Tensor gradient = at::ones_like(output);
  begin = TimingClock::now();
  output.backward(gradient);
  pass.backward_s = seconds_since(begin);
  return pass;
}

Pass least_pass(const MeasuredLayer& layer, std::int64_t samples) {
  const at::Tensor input = layer.make_input(samples);
  one_pass(layer, input);
  std::vector<double> forward, backward;
  Pass pass;
  const auto begin = TimingClock::now();
  while (forward.size() < kFewestCalls ||
         (forward.size() < kMostCalls && seconds_since(begin) < kSecondsOfCalls)) {
    pass = one_pass(layer, input);
    forward.push_back(pass.forward_s);
    backward.push_back(pass.backward_s);
  }
  pass.forward_s = *std::min_element(forward.begin(), forward.end());
  pass.backward_s = *std::min_element(backward.begin(), backward.end());
  return pass;
}

planning::PassCost difference(const planning::PassCost& whole, const planning::PassCost& part) {
  return {.fixed_s = std::max(0.0, whole.fixed_s - part.fixed_s),
          .sample_s = std::max(0.0, whole.sample_s - part.sample_s)};
}

}  // namespace

double least_seconds(const std::function<void()>& body) {
  body();
  std::vector<double> seconds;
  const auto begin = TimingClock::now();
  while (seconds.size() < kFewestCalls ||
         (seconds.size() < kMostCalls && seconds_since(begin) < kSecondsOfCalls)) {
    const auto call = TimingClock::now();
    body();
    seconds.push_back(seconds_since(call));
  }
  return *std::min_element(seconds.begin(), seconds.end());
}

planning::LayerProfile measure_layer(const MeasuredLayer& layer, std::int64_t samples) {
  check(samples >= 1, "layer {}: {} samples; at least one is needed", layer.name, samples);
  const Pass many = least_pass(layer, samples);
  planning::LayerProfile profile{.name = layer.name};
  profile.forward.sample_s = many.forward_s / static_cast<double>(samples);
  profile.backward.sample_s = many.backward_s / static_cast<double>(samples);
  if (const std::int64_t few_samples = std::max<std::int64_t>(1, samples / 4);
      few_samples < samples) {
    const Pass few = least_pass(layer, few_samples);
    const auto n = static_cast<double>(few_samples), m = static_cast<double>(samples);
    profile.forward = planning::line_through(n, few.forward_s, m, many.forward_s);
    profile.backward = planning::line_through(n, few.backward_s, m, many.backward_s);
  }
  profile.activation_bytes = many.kept_bytes / static_cast<double>(samples);
  profile.output_bytes = many.output_bytes / static_cast<double>(samples);
  for (const auto& parameter : layer.module.parameters()) profile.parameters += parameter.numel();
  return profile;
}

planning::LayerProfile without(planning::LayerProfile whole, const planning::LayerProfile& part) {
  whole.forward = difference(whole.forward, part.forward);
  whole.backward = difference(whole.backward, part.backward);
  whole.activation_bytes = std::max(0.0, whole.activation_bytes - part.activation_bytes);
  whole.parameters = std::max<std::int64_t>(0, whole.parameters - part.parameters);
  return whole;
}

}  // namespace paceline::train
