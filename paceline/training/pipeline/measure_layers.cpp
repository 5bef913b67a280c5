#include "paceline/training/pipeline/measure_layers.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/timing.h"
#include "paceline/training/pipeline/backward_pass.h"
#include "paceline/training/tensor/collectives.h"
#include "paceline/training/tensor/tensor_allocator.h"
#include "paceline/training/tensor/tensor_memory.h"
#include "paceline/training/tensor/tensor_view.h"

namespace paceline {
namespace {

using Tensors = PipelineStage::Tensors;

enum Pass : std::size_t { kForward, kWhole, kInputHalf, kWeightHalf, kAdd, kNumPasses };
using Seconds = std::array<std::vector<double>, kNumPasses>;

template <class Body>
double seconds_for(const Body& body) {
  const RunningTimer timer;
  body();
  return timer.seconds();
}

// A layer's forward pass, and the tensors that its backward pass needs.
struct Layer {
  Tensors leaves, outputs;  // the tensors that carry gradients
  Tensors all_outputs, parameters;

  BackwardPass pass() const { return {outputs, leaves, parameters}; }
};

Layer run_layer(const PipelineStage& layer, Tensors inputs, bool is_first) {
  Layer run;
  for (at::Tensor& input : inputs) {
    input = input.detach();
    if (!is_first && carries_gradient(input)) run.leaves.push_back(input.requires_grad_());
  }
  run.all_outputs = layer.forward(inputs);
  run.outputs = gradient_carriers(run.all_outputs);
  for (const at::Tensor& parameter : layer.parameters) {
    if (parameter.requires_grad()) run.parameters.push_back(parameter);
  }
  return run;
}

// Returns tensors that share the memory of a layer's parameters but have gradients of their own.
Tensors aliases_of(const Tensors& parameters) {
  Tensors aliases;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.requires_grad()) aliases.push_back(parameter.detach());
  }
  return aliases;
}

// Times passes of a micro-batch through all layers.
class LayerTimer {
 public:
  LayerTimer(const std::vector<PipelineStage>& layers, const Tensors& inputs,
             const Pipeline::Loss& loss)
      : layers_(layers), inputs_(inputs), loss_(loss), seconds_(layers.size()) {
    for (const PipelineStage& layer : layers) sums_.emplace_back(aliases_of(layer.parameters));
  }

  // Runs all layers forward, then backward. `in_halves`: each backward pass runs in two halves.
  void pass_through(bool in_halves) {
    run_forward();
    const std::vector<Tensors> gradients = in_halves ? run_halves() : run_whole();
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      sums_[i].begin_step();
      note(i, kAdd, seconds_for([&] { sums_[i].add(0, gradients[i]); }));
    }
  }

  // Drops the times so far, because the first passes are only a warm-up.
  void begin() { seconds_.assign(layers_.size(), {}); }
  const std::vector<Seconds>& seconds() const { return seconds_; }

 private:
  void note(std::size_t layer, Pass pass, double seconds) {
    seconds_[layer][pass].push_back(seconds);
  }

  void run_forward() {
    runs_.clear();
    Tensors next = inputs_;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const double seconds = seconds_for([&] {
        runs_.push_back(run_layer(layers_[i], next, i == 0));
        if (i + 1 == layers_.size()) runs_[i].outputs = {loss_(runs_[i].all_outputs, 0)};
      });
      note(i, kForward, seconds);
      next = runs_[i].all_outputs;
    }
  }

  // The next two functions return the gradients of each layer's parameters.
  std::vector<Tensors> run_whole() {
    std::vector<Tensors> of_layers(layers_.size());
    Tensors gradients{at::ones_like(runs_.back().outputs[0])};
    for (std::size_t i = layers_.size(); i-- > 0;) {
      BackwardPass pass = runs_[i].pass();
      BackwardPass::Gradients both;
      note(i, kWhole, seconds_for([&] { both = pass.whole(gradients); }));
      gradients = std::move(both.of_inputs);
      of_layers[i] = std::move(both.of_parameters);
    }
    return of_layers;
  }
  std::vector<Tensors> run_halves() {
    std::vector<Tensors> of_layers(layers_.size());
    Tensors gradients{at::ones_like(runs_.back().outputs[0])};
    for (std::size_t i = layers_.size(); i-- > 0;) {
      BackwardPass pass = runs_[i].pass();
      Tensors of_inputs;
      note(i, kInputHalf, seconds_for([&] { of_inputs = pass.input_half(gradients); }));
      note(i, kWeightHalf, seconds_for([&] { of_layers[i] = pass.weight_half(); }));
      gradients = std::move(of_inputs);
    }
    return of_layers;
  }

  const std::vector<PipelineStage>& layers_;
  const Tensors& inputs_;
  const Pipeline::Loss& loss_;
  std::vector<Layer> runs_;
  std::vector<GradientOrder> sums_;  // [layer]
  std::vector<Seconds> seconds_;
};

}  // namespace

std::vector<LayerTimes> measure_layers(GroupRef group, const std::vector<PipelineStage>& layers,
                                       const Tensors& inputs, const Pipeline::Loss& loss,
                                       int repeats) {
  check(!layers.empty() && repeats >= 1, "measure_layers: {} layers, {} repeats", layers.size(),
        repeats);
  const at::AutoGradMode with_gradients(true);
  LayerTimer timer(layers, inputs, loss);
  for (int i = -1; i < repeats; ++i) {
    if (i == 0) timer.begin();  // the first passes were a warm-up
    for (const bool in_halves : {false, true}) timer.pass_through(in_halves);
  }
  std::vector<double> all;
  for (const Seconds& seconds : timer.seconds()) {
    for (const std::vector<double>& of_pass : seconds) all.push_back(median(of_pass));
  }
  group->all_reduce(std::span(all), ReduceOp::kMean);
  std::vector<LayerTimes> times;
  for (std::size_t i = 0; i < all.size(); i += kNumPasses) {
    times.push_back({.forward_s = all[i + kForward],
                     .backward_s = all[i + kWhole],
                     .input_half_s = all[i + kInputHalf],
                     .weight_half_s = all[i + kWeightHalf],
                     .add_s = all[i + kAdd]});
  }
  return times;
}

std::vector<LayerMemory> measure_layer_memory(GroupRef group,
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
    memory[i].output_bytes = static_cast<double>(total_bytes(next));
    if (i + 1 == layers.size()) runs[i].outputs = {loss(next, 0)};
    memory[i].activation_bytes = bytes_now() - before;
  }
  std::vector<BackwardPass> passes;  // kept alive: they hold tensors for their second halves
  passes.reserve(layers.size());
  Tensors gradients{at::ones_like(runs.back().outputs[0])};
  for (std::size_t i = layers.size(); i-- > 0;) {
    const double before = bytes_now() - static_cast<double>(total_bytes(gradients));
    passes.push_back(runs[i].pass());
    gradients = passes.back().input_half(gradients);
    memory[i].deferred_bytes = memory[i].activation_bytes + bytes_now() - before -
                               static_cast<double>(total_bytes(gradients));
  }
  std::vector<double> all;
  for (const LayerMemory& layer : memory)
    all.insert(all.end(), {layer.activation_bytes, layer.deferred_bytes, layer.output_bytes});
  group->all_reduce(std::span(all), ReduceOp::kMax);
  for (std::size_t i = 0; i < memory.size(); ++i)
    memory[i] = {all[3 * i], all[3 * i + 1], all[3 * i + 2]};
  return memory;
}

std::vector<double> seconds_of(const std::vector<LayerTimes>& layers) {
  std::vector<double> seconds;
  for (const LayerTimes& layer : layers)
    seconds.push_back(layer.forward_s + layer.backward_s + layer.add_s);
  return seconds;
}

pipeline::Costs costs_of_stages(const std::vector<LayerTimes>& layers,
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
    const bool is_first = next == 0;
    if (!is_first && !memory.empty())
      stage.activation_bytes = stage.deferred_bytes = memory.at(next - 1).output_bytes;
    for (int i = 0; i < count; ++i, ++next) {
      const LayerTimes& layer = layers.at(next);
      stage.forward_s += layer.forward_s;
      stage.input_gradient_s += layer.input_half_s;
      stage.weight_gradient_s += layer.weight_half_s + layer.add_s;
      *stage.backward_s += layer.backward_s + layer.add_s;
      if (!memory.empty()) {
        stage.activation_bytes += memory.at(next).activation_bytes;
        stage.deferred_bytes += memory.at(next).deferred_bytes;
      }
    }
    if (is_first) {
      stage.input_gradient_s = 0;
      stage.weight_gradient_s = *stage.backward_s;
      stage.deferred_bytes = stage.activation_bytes;
    }
    costs.stages.push_back(stage);
  }
  return costs;
}

pipeline::TimedSchedule measured(GroupRef group, const PipelineStep& step) {
  constexpr std::int64_t kColumns = 5;  // kind, stage, micro-batch, begin, end
  const auto rows = static_cast<std::int64_t>(step.actions.size());
  const at::Tensor own = at::empty({rows, kColumns}, at::kDouble);
  double* next = own.data_ptr<double>();
  for (const auto& [action, begin, end] : step.actions) {
    for (const double value : {static_cast<double>(action.kind), static_cast<double>(action.stage),
                               static_cast<double>(action.micro_batch), begin, end})
      *next++ = value;
  }
  const at::Tensor counts = all_gather_into_tensor(group, at::full({1}, rows, at::kLong));
  const std::int64_t* const count = counts.data_ptr<std::int64_t>();
  const at::Tensor all = all_gather_v(group, own, {count, count + group->world_size()});
  const double* value = all.data_ptr<double>();
  pipeline::TimedSchedule result;
  for (int rank = 0; rank < group->world_size(); ++rank) {
    auto& actions = result.ranks.emplace_back();
    double busy = 0;
    for (std::int64_t i = 0; i < count[rank]; ++i, value += kColumns) {
      actions.push_back({{static_cast<pipeline::Action::Kind>(value[0]), static_cast<int>(value[1]),
                          static_cast<int>(value[2])},
                         value[3],
                         value[4]});
      busy += value[4] - value[3];
      result.seconds = std::max(result.seconds, value[4]);
    }
    result.busy_s.push_back(busy);
  }
  return result;
}

}  // namespace paceline
