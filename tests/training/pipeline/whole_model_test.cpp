// Results for a whole model whose stages are on several ranks: losses without gradients, the costs
// of its layers, its weights.

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/planning/schedules/named_schedules.h"
#include "paceline/training/pipeline/measure_layers.h"
#include "paceline/training/pipeline/pipeline.h"
#include "paceline/training/pipeline/stage_weights.h"
#include "paceline/training/tensor/collectives.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/thread_ranks.h"
#include "tests/training/pipeline/stage_models.h"

namespace paceline {
namespace {

using harness::run_ranks_ok;
using Tensors = PipelineStage::Tensors;

at::Tensor power_loss(const Tensors& outputs, int) { return outputs[0].pow(2).mean(); }

TEST(PipelineEvaluation, losses_are_those_of_one_process_and_leave_no_gradients) {
  std::vector<Tensors> batches;
  for (int i = 0; i < 4; ++i) batches.push_back({made_up({3, kWidth}, i)});
  std::vector<PipelineStage> all;
  for (int stage = 0; stage < 4; ++stage) all.push_back(block_stage(stage));
  const Oracle oracle = run_in_one_process(all, batches, power_loss);
  for (const auto name : {"gpipe", "interleaved-1f1b", "zero-bubble"}) {
    run_ranks_ok(2, [&](ProcessGroup& group) {
      Pipeline pipeline(loan_of(group), pipeline_schedule(name, 2, 4, 2),
                        {block_stage(group.rank()), block_stage(group.rank() + 2)});
      EXPECT_EQ(pipeline.has_first_stage(), group.rank() == 0);
      EXPECT_EQ(pipeline.last_stage_rank(), 1);
      const auto given = group.rank() == 0 ? batches : std::vector<Tensors>{};
      for (int round = 0; round < 2; ++round) {
        const auto losses = pipeline.evaluate(given, power_loss);
        ASSERT_EQ(losses.size(), group.rank() == 1 ? 4u : 0u);
        for (std::size_t i = 0; i < losses.size(); ++i) {
          EXPECT_TRUE(at::equal(losses[i], oracle.losses[i]));
          EXPECT_FALSE(losses[i].requires_grad());
        }
        pipeline.step(given, power_loss);  // evaluate() and step() may alternate
      }
    });
  }
}

TEST(MeasureLayers, every_rank_learns_the_same_times_and_gradients_stay_as_they_were) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    std::vector<PipelineStage> layers;
    for (int i = 0; i < 3; ++i) layers.push_back(block_stage(i));
    // The second layer computes so much more that no interruption of another layer hides it.
    layers[1].forward = [inner = layers[1].forward](const Tensors& inputs) {
      Tensors result = inner(inputs);
      for (int i = 0; i < 300; ++i) result[0] = result[0] + inner(inputs)[0];
      return result;
    };
    layers[0].parameters[0].mutable_grad() = at::ones({kWidth});
    constexpr int kRepeats = 7;
    const auto costs =
        measure_layers(group, layers, {made_up({4, kWidth}, 1)}, power_loss, kRepeats);
    ASSERT_EQ(costs.size(), 3u);
    const std::vector<double> seconds = seconds_of(costs);
    EXPECT_GT(seconds[1], seconds[0]);
    EXPECT_GT(seconds[1], seconds[2]);
    for (const LayerTimes& layer : costs) {
      for (const double time : {layer.forward_s, layer.backward_s, layer.input_half_s,
                                layer.weight_half_s, layer.add_s})
        EXPECT_GT(time, 0);
    }
    EXPECT_TRUE(at::equal(layers[0].parameters[0].grad(), at::ones({kWidth})));
    EXPECT_FALSE(layers[0].parameters[1].grad().defined());
    const at::Tensor own = at::tensor(seconds, at::kDouble);
    for (const at::Tensor& other : all_gather(group, own)) EXPECT_TRUE(at::equal(other, own));

    const pipeline::Costs stages = costs_of_stages(costs, {1, 2});
    ASSERT_EQ(stages.stages.size(), 2u);
    EXPECT_DOUBLE_EQ(stages.stages[1].forward_s, costs[1].forward_s + costs[2].forward_s);
    EXPECT_DOUBLE_EQ(stages.stages[1].input_gradient_s,
                     costs[1].input_half_s + costs[2].input_half_s);
    expect_error(ErrorCode::kInvalid, {"0 layers"},
                 [&] { measure_layers(group, {}, {}, power_loss); });
  });
}

TEST(MeasureLayers, gradients_flow_through_complex_tensors) {
  run_ranks_ok(1, [](ProcessGroup& group) {
    const at::Tensor weight = made_up({4, kWidth}, 2).requires_grad_();
    int num_gradients = 0;
    const PipelineStage rotations{
        .index = 0,
        .forward =
            [&](const Tensors& inputs) {
              const at::Tensor angle = inputs[0] * weight;
              angle.register_hook([&](const at::Tensor&) { ++num_gradients; });
              return Tensors{at::complex(angle.cos(), angle.sin())};
            },
        .parameters = {weight}};
    const PipelineStage real_parts{
        .index = 1, .forward = [](const Tensors& inputs) { return Tensors{at::real(inputs[0])}; }};
    measure_layers(group, {rotations, real_parts}, {made_up({4, kWidth}, 1)}, power_loss);
    EXPECT_GT(num_gradients, 0);
  });
}

// exp() keeps its result; a product keeps its two factors, of which the first is the input.
TEST(MeasureLayers, memory_is_what_a_pass_keeps_and_gives_on) {
  run_ranks_ok(1, [](ProcessGroup& group) {
    constexpr double kStates = 4 * kWidth * sizeof(float);
    const at::Tensor factor = made_up({kWidth}, 3).requires_grad_();
    const PipelineStage product{
        .index = 0,
        .forward = [factor](const Tensors& inputs) { return Tensors{inputs[0] * factor}; },
        .parameters = {factor}};
    const PipelineStage exponentials{.index = 1, .forward = [](const Tensors& inputs) {
                                       return Tensors{inputs[0].exp().exp()};
                                     }};
    const auto memory = measure_layer_memory(group, {product, exponentials, product},
                                             {made_up({4, kWidth}, 1)}, power_loss);
    ASSERT_EQ(memory.size(), 3u);
    for (const LayerMemory& layer : memory) EXPECT_EQ(layer.output_bytes, kStates);
    EXPECT_EQ(memory[0].activation_bytes, kStates);
    EXPECT_EQ(memory[1].activation_bytes, 2 * kStates);
    EXPECT_EQ(memory[2].activation_bytes, kStates + sizeof(float));  // plus the loss
    // In addition there is the gradient from which the factor's gradient is computed.
    for (const std::size_t layer : {0u, 2u}) {
      EXPECT_GE(memory[layer].deferred_bytes, memory[layer].activation_bytes + kStates);
      EXPECT_LT(memory[layer].deferred_bytes, memory[layer].activation_bytes + 2 * kStates);
    }
    EXPECT_FALSE(factor.grad().defined());
    expect_error(ErrorCode::kInvalid, {"no layers"},
                 [&] { measure_layer_memory(group, {}, {}, power_loss); });
  });
  const std::vector<LayerTimes> times(3);
  const auto stages = costs_of_stages(times, {1, 2}, {{10, 5, 2}, {20, 7, 3}, {30, 8, 4}}).stages;
  EXPECT_EQ(stages[0].activation_bytes, 10);
  EXPECT_EQ(stages[0].deferred_bytes, 10);  // the first stage defers no gradients of its inputs
  EXPECT_EQ(stages[1].activation_bytes, 2 + 20 + 30);  // includes the copy of its input
  EXPECT_EQ(stages[1].deferred_bytes, 2 + 7 + 8);
}

TEST(CostsOfStages, the_first_stage_makes_no_gradient_of_its_input) {
  const LayerTimes each{
      .forward_s = 1, .backward_s = 10, .input_half_s = 4, .weight_half_s = 8, .add_s = 0.5};
  const auto stages = costs_of_stages({each, each, each}, {1, 2}).stages;
  EXPECT_EQ(stages[0].input_gradient_s, 0);
  EXPECT_EQ(stages[0].weight_gradient_s, 10.5);
  EXPECT_EQ(stages[0].backward_s, 10.5);
  EXPECT_EQ(stages[1].forward_s, 2);
  EXPECT_EQ(stages[1].input_gradient_s, 8);
  EXPECT_EQ(stages[1].weight_gradient_s, 17);
  EXPECT_EQ(stages[1].backward_s, 21);
  EXPECT_EQ(seconds_of({each})[0], 11.5);
}

TEST(OfAllLayers, those_between_are_alike) {
  EXPECT_EQ(of_all_layers(std::vector<int>{1, 2, 3}, 5), (std::vector<int>{1, 2, 2, 2, 3}));
  EXPECT_EQ(of_all_layers(std::vector<int>{1, 3}, 2), (std::vector<int>{1, 3}));
}

TEST(GatherStages, every_rank_gets_all_weights_and_tied_ones_once) {
  run_ranks_ok(3, [](ProcessGroup& group) {
    const double rank = group.rank();
    std::map<std::string, at::Tensor> own{
        {"layer." + std::to_string(group.rank()), made_up({2, 3}, rank)}};
    if (group.rank() != 1) own["tied"] = at::full({4}, 2, at::kBFloat16);
    const auto all = gather_stages(group, own);
    ASSERT_EQ(all.size(), 4u);
    for (int i = 0; i < 3; ++i)
      EXPECT_TRUE(at::equal(all.at("layer." + std::to_string(i)), made_up({2, 3}, i)));
    EXPECT_TRUE(at::equal(all.at("tied"), at::full({4}, 2, at::kBFloat16)));
  });
}

}  // namespace
}  // namespace paceline
