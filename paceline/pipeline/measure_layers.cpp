#include "paceline/pipeline/measure_layers.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <span>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "paceline/core/check.h"
#include "paceline/pipeline/backward_pass.h"
#include "paceline/tensor/tensor_memory_meter.h"

namespace paceline {
namespace {

using Tensors = PipelineStage::Tensors;

enum Pass : std::size_t { kForward, kWhole, kInputHalf, kWeightHalf, kNumPasses };
using Seconds = std::array<double, kNumPasses>;

template <class Body>
double seconds_for(const Body& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double bytes_of(const Tensors& tensors) {
  double bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) bytes += static_cast<double>(tensor.nbytes());
  }
  return bytes;
}

Tensors floating(const Tensors& tensors) {
  Tensors result;
  for (const at::Tensor& tensor : tensors) {
    if (at::isFloatingType(tensor.scalar_type())) result.push_back(tensor);
  }
  return result;
}

// A layer's forward pass, and what its backward pass begins with.
struct Layer {
  Tensors leaves, outputs;  // that carry gradients
  Tensors all_outputs, parameters;

  BackwardPass pass() const { return {outputs, leaves, parameters}; }
};

Layer run_layer(const PipelineStage& layer, Tensors inputs, bool is_first) {
  Layer run;
  for (at::Tensor& input : inputs) {
    input = input.detach();
    if (!is_first && at::isFloatingType(input.scalar_type()))
      run.leaves.push_back(input.requires_grad_());
  }
  run.all_outputs = layer.forward(inputs);
  run.outputs = floating(run.all_outputs);
  for (const at::Tensor& parameter : layer.parameters) {
    if (parameter.requires_grad()) run.parameters.push_back(parameter);
  }
  return run;
}

// All layers forwards, then backwards. `in_halves`: each backward pass in two.
void pass_through(const std::vector<PipelineStage>& layers, const Tensors& inputs,
                  const Pipeline::Loss& loss, bool in_halves, std::vector<Seconds>& fastest) {
  const auto note = [&](std::size_t layer, Pass pass, double seconds) {
    fastest[layer][pass] = std::min(fastest[layer][pass], seconds);
  };
  std::vector<Layer> runs;
  Tensors next = inputs;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const double seconds = seconds_for([&] {
      runs.push_back(run_layer(layers[i], next, i == 0));
      Layer& run = runs.back();
      if (i + 1 == layers.size()) run.outputs = {loss(run.all_outputs, 0)};
    });
    note(i, kForward, seconds);
    next = runs.back().all_outputs;
  }
  Tensors gradients{at::ones_like(runs.back().outputs[0])};
  for (std::size_t i = layers.size(); i-- > 0;) {
    BackwardPass pass = runs[i].pass();
    Tensors of_inputs;
    if (in_halves) {
      note(i, kInputHalf, seconds_for([&] { of_inputs = pass.input_half(gradients); }));
      note(i, kWeightHalf, seconds_for([&] { pass.weight_half(); }));
    } else {
      note(i, kWhole, seconds_for([&] { of_inputs = pass.whole(gradients).of_inputs; }));
    }
    gradients = std::move(of_inputs);
  }
}

}  // namespace

std::vector<pipeline::StageCosts> measure_layers(ProcessGroup& group,
                                                 const std::vector<PipelineStage>& layers,
                                                 const Tensors& inputs, const Pipeline::Loss& loss,
                                                 int repeats) {
  check(!layers.empty() && repeats >= 1, "measure_layers: {} layers, {} repeats", layers.size(),
        repeats);
  const at::AutoGradMode with_gradients(true);
  Seconds never;
  never.fill(std::numeric_limits<double>::infinity());
  std::vector<Seconds> fastest;
  for (int i = -1; i < repeats; ++i) {
    if (i <= 0) fastest.assign(layers.size(), never);  // what the first pass took does not count
    for (const bool in_halves : {false, true})
      pass_through(layers, inputs, loss, in_halves, fastest);
  }
  std::vector<double> all;
  for (const Seconds& seconds : fastest) all.insert(all.end(), seconds.begin(), seconds.end());
  group.all_reduce(std::span(all), ReduceOp::kMean);
  std::vector<pipeline::StageCosts> costs;
  for (std::size_t i = 0; i < all.size(); i += kNumPasses) {
    costs.push_back({.forward_s = all[i + kForward],
                     .input_gradient_s = all[i + kInputHalf],
                     .weight_gradient_s = all[i + kWeightHalf],
                     .backward_s = all[i + kWhole]});
  }
  return costs;
}

std::vector<LayerMemory> measure_layer_memory(ProcessGroup& group,
                                              const std::vector<PipelineStage>& layers,
                                              const Tensors& inputs, const Pipeline::Loss& loss) {
  check(!layers.empty(), "measure_layer_memory: no layers");
  const at::AutoGradMode with_gradients(true);
  std::vector<LayerMemory> memory(layers.size());
  std::vector<Layer> runs;
  const TensorMemoryMeter meter;
  const auto bytes_now = [&] { return static_cast<double>(meter.bytes()); };
  Tensors next = inputs;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const double before = bytes_now();
    runs.push_back(run_layer(layers[i], next, i == 0));
    next = runs[i].all_outputs;
    memory[i].output_bytes = bytes_of(next);
    if (i + 1 == layers.size()) runs[i].outputs = {loss(next, 0)};
    memory[i].activation_bytes = bytes_now() - before;
  }
  std::vector<BackwardPass> passes;  // alive, with what they keep for their second halves
  passes.reserve(layers.size());
  Tensors gradients{at::ones_like(runs.back().outputs[0])};
  for (std::size_t i = layers.size(); i-- > 0;) {
    const double before = bytes_now() - bytes_of(gradients);
    passes.push_back(runs[i].pass());
    gradients = passes.back().input_half(gradients);
    memory[i].deferred_bytes =
        memory[i].activation_bytes + bytes_now() - before - bytes_of(gradients);
  }
  std::vector<double> all;
  for (const LayerMemory& layer : memory)
    all.insert(all.end(), {layer.activation_bytes, layer.deferred_bytes, layer.output_bytes});
  group.all_reduce(std::span(all), ReduceOp::kMax);
  for (std::size_t i = 0; i < memory.size(); ++i)
    memory[i] = {all[3 * i], all[3 * i + 1], all[3 * i + 2]};
  return memory;
}

std::vector<double> seconds_of(const std::vector<pipeline::StageCosts>& layers) {
  std::vector<double> seconds;
  for (const pipeline::StageCosts& layer : layers) {
    seconds.push_back(layer.forward_s +
                      layer.backward_s.value_or(layer.input_gradient_s + layer.weight_gradient_s));
  }
  return seconds;
}

pipeline::Costs costs_of_stages(const std::vector<pipeline::StageCosts>& layers,
                                const std::vector<int>& counts,
                                const std::vector<LayerMemory>& memory) {
  pipeline::Costs costs;
  std::size_t next = 0;
  for (const int count : counts) {
    pipeline::StageCosts stage{.forward_s = 0,
                               .input_gradient_s = 0,
                               .weight_gradient_s = 0,
                               .backward_s = 0.0,
                               .activation_bytes = 0,
                               .deferred_bytes = 0};
    if (next > 0 && !memory.empty())
      stage.activation_bytes = stage.deferred_bytes = memory.at(next - 1).output_bytes;
    for (int i = 0; i < count; ++i, ++next) {
      const pipeline::StageCosts& layer = layers.at(next);
      stage.forward_s += layer.forward_s;
      stage.input_gradient_s += layer.input_gradient_s;
      stage.weight_gradient_s += layer.weight_gradient_s;
      *stage.backward_s +=
          layer.backward_s.value_or(layer.input_gradient_s + layer.weight_gradient_s);
      if (!memory.empty()) {
        stage.activation_bytes += memory.at(next).activation_bytes;
        stage.deferred_bytes += memory.at(next).deferred_bytes;
      }
      stage.transfer_s = layer.transfer_s;
    }
    costs.stages.push_back(stage);
  }
  return costs;
}

}  // namespace paceline
