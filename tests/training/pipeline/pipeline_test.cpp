// Compares pipelines with one process that takes one micro-batch after the other: bitwise equal.

#include "paceline/training/pipeline/pipeline.h"

#include <algorithm>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/planning/schedules/named_schedules.h"
#include "paceline/planning/schedules/picture.h"
#include "paceline/planning/schedules/schedule_checks.h"
#include "paceline/planning/schedules/search.h"
#include "paceline/training/pipeline/measure_layers.h"

#include "tests/harness/thread_ranks.h"
#include "tests/training/pipeline/stage_models.h"

namespace paceline {
namespace {

using harness::run_ranks_ok;
using Tensors = PipelineStage::Tensors;
using StageMaker = std::function<PipelineStage(int index)>;

std::vector<Tensors> some_micro_batches(int count) {
  std::vector<Tensors> result;
  for (int i = 0; i < count; ++i) result.push_back({made_up({4, kWidth}, 10 + i)});
  return result;
}

at::Tensor square_loss(const Tensors& outputs, int micro_batch) {
  return (outputs[0] - made_up(outputs[0].sizes(), 20 + micro_batch)).pow(2).mean();
}

void expect_equal_gradients(const std::vector<at::Tensor>& parameters,
                            const std::vector<at::Tensor>& expected, const std::string& what) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& gradient = parameters[i].grad();
    ASSERT_EQ(gradient.defined(), expected[i].defined()) << what;
    if (gradient.defined()) {
      EXPECT_TRUE(at::equal(gradient, expected[i])) << what;
    }
  }
}

// Runs two steps, whose gradients are added.
void expect_equal_to_one_process(const PipelineSchedule& schedule, const StageMaker& make,
                                 const std::vector<Tensors>& micro_batches,
                                 const Pipeline::Loss& loss = square_loss) {
  std::vector<PipelineStage> all;
  for (int stage = 0; stage < schedule.num_stages(); ++stage) all.push_back(make(stage));
  run_in_one_process(all, micro_batches, loss);
  const Oracle oracle = run_in_one_process(all, micro_batches, loss);
  run_ranks_ok(schedule.num_ranks(), [&](ProcessGroup& group) {
    std::vector<PipelineStage> own;
    for (int stage = 0; stage < schedule.num_stages(); ++stage) {
      if (schedule.rank_of_stage[static_cast<std::size_t>(stage)] == group.rank())
        own.push_back(make(stage));
    }
    Pipeline pipeline(loan_of(group), schedule, own);
    const auto given = own[0].index == 0 ? micro_batches : std::vector<Tensors>{};
    pipeline.step(given, loss);
    const auto result = pipeline.step(given, loss);
    for (const PipelineStage& stage : own) {
      expect_equal_gradients(stage.parameters,
                             oracle.gradients[static_cast<std::size_t>(stage.index)],
                             schedule.name + ", stage " + std::to_string(stage.index));
    }
    const bool is_last = own.back().index + 1 == schedule.num_stages();
    ASSERT_EQ(result.losses.size(), is_last ? micro_batches.size() : 0u);
    for (std::size_t i = 0; i < result.losses.size(); ++i)
      EXPECT_TRUE(at::equal(result.losses[i], oracle.losses[i]));
  });
}

TEST(PipelineBits, named_schedules_with_one_stage_a_rank) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const int micro_batches : {1, 2, 3, 8}) {  // also fewer micro-batches than stages
      for (const auto name : {"gpipe", "1f1b", "zero-bubble"}) {
        expect_equal_to_one_process(pipeline_schedule(name, ranks, micro_batches), block_stage,
                                    some_micro_batches(micro_batches));
      }
    }
  }
}

TEST(PipelineBits, named_schedules_with_several_stages_a_rank) {
  for (const int ranks : {1, 2, 3}) {
    for (const auto name : {"gpipe", "interleaved-1f1b", "zero-bubble"}) {
      expect_equal_to_one_process(pipeline_schedule(name, ranks, 2 * ranks, 2), block_stage,
                                  some_micro_batches(2 * ranks));
    }
  }
}

TEST(PipelineBits, eight_ranks) {
  for (const auto name : pipeline_schedule_names()) {
    expect_equal_to_one_process(pipeline_schedule(name, 8, 8), block_stage, some_micro_batches(8));
  }
}

TEST(PipelineBits, searched_plans_also_in_a_v) {
  auto costs = pipeline::equal_costs(4, {.transfer_s = 0.1});
  costs.stages[0].forward_s = 2;
  for (const auto& layout : {pipeline::looped_layout(4, 1), pipeline::v_layout(2)}) {
    const auto found = pipeline::search_schedule(layout, 6, costs);
    expect_equal_to_one_process(found.schedule, block_stage, some_micro_batches(6));
  }
}

// The backward passes run in another order than the forward passes, and in another order on each
// rank.
TEST(PipelineBits, plans_whose_micro_batches_change_places) {
  // The second schedule has whole backward passes and halves in one stage.
  for (const char* csv : {"0F0,0F1,0F2,0B2,0B1,0B0\n1F0,1F1,1F2,1B2,1B1,1B0\n",
                          "0F2,0F0,0F1,0I1,0B2,0W1,0B0\n1F0,1F1,1F2,1B1,1I0,1B2,1W0\n"}) {
    expect_equal_to_one_process(PipelineSchedule::from_csv(csv), block_stage,
                                some_micro_batches(3));
  }
}

// Token numbers and an embedding; then two tensors go between stages: the states, and the mask that
// hides some of them.
PipelineStage stage_with_mask(int index) {
  if (index == 0) {
    const auto table = made_up({11, kWidth}, 0.2).requires_grad_();
    return {.index = 0,
            .forward =
                [table](const Tensors& inputs) {
                  return Tensors{at::embedding(table, inputs[0]), inputs[0] > 5};
                },
            .parameters = {table}};
  }
  auto stage = block_stage(index);
  // The stage's first parameter is frozen, and its last one is unused.
  stage.parameters[0].requires_grad_(false);
  stage.parameters.push_back(made_up({3}, 1).requires_grad_());
  stage.forward = [inner = stage.forward](const Tensors& inputs) {
    const auto kept = inputs[0].masked_fill(inputs[1].unsqueeze(-1), 0.5);
    return Tensors{inner({kept})[0], inputs[1]};
  };
  return stage;
}

TEST(PipelineBits, several_tensors_of_changing_shapes) {
  std::vector<Tensors> tokens;
  for (int i = 0; i < 5; ++i)
    tokens.push_back({(at::arange(3 * (i + 2)) * 7).remainder(11).view({3, i + 2})});
  for (const auto name : {"gpipe", "1f1b", "zero-bubble"}) {
    expect_equal_to_one_process(pipeline_schedule(name, 3, 5), stage_with_mask, tokens);
  }
}

// Stage 1 only passes on an output of stage 0 that stage 2 needs.
TEST(PipelineBits, a_skip_past_a_stage) {
  const StageMaker make = [](int index) {
    auto stage = block_stage(index);
    stage.forward = [index, inner = stage.forward](const Tensors& inputs) {
      if (index == 2) return inner({inputs[0] + inputs[1]});
      const at::Tensor states = inner({inputs[0]})[0];
      return Tensors{states, index == 0 ? states.tanh() : inputs[1]};
    };
    return stage;
  };
  for (const auto name : {"gpipe", "1f1b", "zero-bubble"})
    expect_equal_to_one_process(pipeline_schedule(name, 3, 4), make, some_micro_batches(4));
}

// The gradient of the second parameter is that of the output, which another rank lends.
TEST(PipelineBits, a_gradient_that_is_passed_on_to_a_parameter) {
  const StageMaker make = [](int index) {
    auto stage = block_stage(index);
    const auto offset = made_up({4, kWidth}, index).requires_grad_();
    stage.parameters.push_back(offset);
    stage.forward = [inner = stage.forward, offset](const Tensors& inputs) {
      return Tensors{inner(inputs)[0] + offset};
    };
    return stage;
  };
  for (const char* csv : {"0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1F1,1F2,1B0,1B1,1B2\n",
                          "0F0,0F1,0F2,0B2,0B1,0B0\n1F0,1F1,1F2,1B2,1B1,1B0\n",
                          "0F2,0F0,0F1,0I1,0B2,0W1,0B0\n1F0,1F1,1F2,1B1,1I0,1B2,1W0\n"}) {
    expect_equal_to_one_process(PipelineSchedule::from_csv(csv), make, some_micro_batches(3));
  }
}

// An output that no later stage uses has no gradient.
TEST(PipelineBits, an_output_that_is_not_used) {
  const StageMaker make = [](int index) {
    auto stage = block_stage(index);
    const auto other = made_up({kWidth}, 5).requires_grad_();
    if (index > 0) return stage;
    stage.parameters.push_back(other);
    stage.forward = [inner = stage.forward, other](const Tensors& inputs) {
      return Tensors{inner(inputs)[0], inputs[0] * other};
    };
    return stage;
  };
  for (const auto name : {"1f1b", "zero-bubble"}) {
    expect_equal_to_one_process(pipeline_schedule(name, 2, 3), make, some_micro_batches(3));
  }
}

TEST(PipelineMeasured, actions_become_a_picture) {
  run_ranks_ok(3, [](ProcessGroup& group) {
    const auto schedule = pipeline_schedule("zero-bubble", 3, 4);
    Pipeline pipeline(loan_of(group), schedule, {block_stage(group.rank())});
    const auto step = pipeline.step(
        group.rank() == 0 ? some_micro_batches(4) : std::vector<Tensors>{}, square_loss);
    const auto all = measured(group, step);
    ASSERT_EQ(all.ranks.size(), 3u);
    for (std::size_t rank = 0; rank < 3; ++rank) {
      ASSERT_EQ(all.ranks[rank].size(), schedule.ranks[rank].size());
      for (std::size_t i = 0; i < all.ranks[rank].size(); ++i) {
        EXPECT_EQ(all.ranks[rank][i].action, schedule.ranks[rank][i]);
        EXPECT_GE(all.ranks[rank][i].end_s, all.ranks[rank][i].begin_s);
        if (i > 0) {
          EXPECT_GE(all.ranks[rank][i].begin_s, all.ranks[rank][i - 1].end_s);
        }
      }
    }
    const auto simulated = simulate(schedule, pipeline::equal_costs(3));
    const pipeline::Picture picture{.title = "x", .planned = simulated, .measured = all};
    EXPECT_NE(to_svg(picture).find("measured"), std::string::npos);
  });
}

TEST(MicroBatches, a_batch_is_cut_along_its_first_dimension) {
  const auto batch = made_up({6, 2}, 0);
  const auto parts = split_micro_batches(batch, 3);
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_TRUE(at::equal(parts[1][0], batch.slice(0, 2, 4)));
}

}  // namespace
}  // namespace paceline
