// Compares GPT and BERT in a pipeline with the whole model in one process, which takes one
// micro-batch after the other: bitwise equal.

#include <functional>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/planning/schedules/named_schedules.h"
#include "paceline/planning/schedules/schedule_checks.h"
#include "paceline/planning/schedules/search.h"
#include "paceline/training/models/transformer_stage.h"
#include "paceline/training/pipeline/pipeline.h"
#include "paceline/training/pipeline/stage_weights.h"

#include "tests/harness/thread_ranks.h"
#include "tests/training/pipeline/stage_models.h"

namespace paceline {
namespace {

using harness::run_ranks_ok;
using Tensors = PipelineStage::Tensors;

constexpr std::int64_t kWords = 19, kSequences = 3;

models::GptOptions small_gpt() {
  return {.vocabulary = kWords, .context = 8, .layers = 4, .width = 8, .heads = 2, .dropout = 0};
}

models::BertOptions small_bert() {
  return {.vocabulary = kWords,
          .context = 8,
          .layers = 4,
          .width = 8,
          .heads = 2,
          .feed_forward = 12,
          .dropout = 0};
}

at::Tensor tokens_of(int micro_batch, std::int64_t length) {
  return (torch::arange(kSequences * length) * 7 + micro_batch)
      .remainder(kWords)
      .view({kSequences, length});
}

at::Tensor token_loss(const Tensors& logits, int micro_batch) {
  return models::next_token_loss(logits[0], tokens_of(micro_batch + 1, logits[0].size(1)));
}

// Losses and gradients of the whole model, with its parameter names.
struct WholeModel {
  std::vector<at::Tensor> losses;
  torch::OrderedDict<std::string, at::Tensor> parameters;
};

template <class Whole>
WholeModel run_whole(Whole& whole, const std::vector<Tensors>& batches,
                     const std::function<at::Tensor(const Tensors&)>& forward) {
  WholeModel result;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const auto loss = token_loss({forward(batches[i])}, static_cast<int>(i));
    result.losses.push_back(loss.detach());
    (loss / static_cast<int>(batches.size())).backward();
  }
  result.parameters = whole->named_parameters();
  return result;
}

// One stage on each of two ranks; and a V with two stages on each rank, both ends on rank 0.
std::vector<PipelineSchedule> schedules_of_two_ranks(int micro_batches) {
  const pipeline::Costs equal{
      .stages = std::vector<pipeline::StageCosts>(
          4, {.forward_s = 1, .input_gradient_s = 1, .weight_gradient_s = 1})};
  return {pipeline_schedule("1f1b", 2, micro_batches),
          pipeline_schedule("zero-bubble", 2, micro_batches),
          pipeline::search_schedule(pipeline::v_layout(2), micro_batches, equal).schedule};
}

// For one micro-batch the tied weight's gradient is bitwise equal to the whole model's; for more,
// its two uses are added in another order.
template <class Stage, class Options>
void expect_the_bits_of(const WholeModel& whole, const Options& options, const std::string& tied,
                        const PipelineSchedule& schedule, const std::vector<Tensors>& batches) {
  // The stages are made here, because the ranks' threads share a random generator.
  std::vector<std::vector<Stage>> stages(2);
  for (int index = 0; index < schedule.num_stages(); ++index) {
    torch::manual_seed(3);
    const auto range = models::BlockRange::of_stage(options.layers, index, schedule.num_stages());
    stages[static_cast<std::size_t>(schedule.rank_of_stage[static_cast<std::size_t>(index)])]
        .emplace_back(options, models::Layers{}, range);
  }
  run_ranks_ok(2, [&](ProcessGroup& group) {
    const auto& own = stages[static_cast<std::size_t>(group.rank())];
    models::join_ends(own);
    std::vector<PipelineStage> functions;
    Tensors tied_weights;
    for (int index = 0; index < schedule.num_stages(); ++index) {
      if (schedule.rank_of_stage[static_cast<std::size_t>(index)] != group.rank()) continue;
      const Stage& stage = own[functions.size()];
      functions.push_back(make_stage(index, stage));
      for (const at::Tensor& weight : stage->tied_weights()) tied_weights.push_back(weight);
    }
    Pipeline pipeline(loan_of(group), schedule, functions);
    TiedWeights copies(group, tied_weights);
    const auto losses =
        pipeline.step(group.rank() == 0 ? batches : std::vector<Tensors>{}, token_loss).losses;
    copies.add_gradients();
    for (std::size_t i = 0; i < losses.size(); ++i)
      EXPECT_TRUE(torch::equal(losses[i], whole.losses[i]));
    const auto parameters = models::one_module(own)->named_parameters();
    EXPECT_TRUE(group.rank() > 0 || parameters.contains(tied));
    for (const auto& parameter : parameters) {
      const at::Tensor& found = parameter.value().grad();
      const at::Tensor& wanted = whole.parameters[parameter.key()].grad();
      if (parameter.key() == tied && batches.size() > 1) {
        EXPECT_TRUE(torch::allclose(found, wanted, 1e-4, 1e-6));
      } else {
        EXPECT_TRUE(torch::equal(found, wanted)) << schedule.name << ": " << parameter.key();
      }
    }
  });
}

TEST(TransformerStages, stages_of_gpt_have_the_bits_of_the_whole_model) {
  for (const int count : {1, 4}) {
    std::vector<Tensors> batches;
    for (int i = 0; i < count; ++i) batches.push_back({tokens_of(i, 5)});
    torch::manual_seed(3);
    models::Gpt gpt(small_gpt());
    const WholeModel whole =
        run_whole(gpt, batches, [&](const Tensors& inputs) { return gpt->forward(inputs[0]); });
    for (const PipelineSchedule& schedule : schedules_of_two_ranks(count))
      expect_the_bits_of<models::GptStage>(whole, small_gpt(), "wte.weight", schedule, batches);
  }
}

// With padding, so that the second stage needs the mask, and with varying lengths.
TEST(TransformerStages, stages_of_bert_have_the_bits_of_the_whole_model) {
  for (const int count : {1, 4}) {
    std::vector<Tensors> batches;
    for (int i = 0; i < count; ++i) {
      const at::Tensor text = tokens_of(i, 4 + i);
      batches.push_back({text, (text > 9).to(torch::kLong), torch::arange(4 + i) < text % 3 + 3});
    }
    torch::manual_seed(3);
    models::Bert bert(small_bert());
    const WholeModel whole = run_whole(bert, batches, [&](const Tensors& inputs) {
      return bert->forward(inputs[0], inputs[1], inputs[2]);
    });
    for (const PipelineSchedule& schedule : schedules_of_two_ranks(count))
      expect_the_bits_of<models::BertStage>(whole, small_bert(), "words.weight", schedule, batches);
  }
}

}  // namespace
}  // namespace paceline
