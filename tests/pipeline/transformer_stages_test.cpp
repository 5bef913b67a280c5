// GPT and BERT in a pipeline against the whole model in one process, which takes one micro-batch
// after the other: equal in bits.

#include <functional>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/models/stage.h"
#include "paceline/pipeline/pipeline.h"
#include "paceline/pipeline/tied_weights.h"
#include "paceline/schedules/named_plans.h"

#include "tests/harness/thread_ranks.h"
#include "tests/pipeline/stage_models.h"

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

// Losses and gradients of the whole model, by its names.
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

// The tied weight's gradient has the same bits for one micro-batch; for more, its two uses are
// added up in another order.
template <class Stage, class Options>
void expect_the_bits_of(const WholeModel& whole, const Options& options, const std::string& tied,
                        const char* schedule, const std::vector<Tensors>& batches) {
  const int count = static_cast<int>(batches.size());
  std::vector<Stage> stages;  // made here: threads share a generator of random numbers
  for (int rank = 0; rank < 2; ++rank) {
    torch::manual_seed(3);
    stages.emplace_back(options, models::Layers{}, models::stage_range(options.layers, rank, 2));
  }
  run_ranks_ok(2, [&](ProcessGroup& group) {
    const Stage stage = stages[static_cast<std::size_t>(group.rank())];
    Pipeline pipeline(loan_of(group), pipeline::make_plan(schedule, {2, count}),
                      {make_stage(group.rank(), stage)});
    TiedWeights copies(group, stage->tied_weights());
    const auto losses =
        pipeline.step(group.rank() == 0 ? batches : std::vector<Tensors>{}, token_loss).losses;
    copies.add_gradients();
    for (std::size_t i = 0; i < losses.size(); ++i)
      EXPECT_TRUE(torch::equal(losses[i], whole.losses[i]));
    for (const auto& parameter : stage->named_parameters()) {
      const at::Tensor& found = parameter.value().grad();
      const at::Tensor& wanted = whole.parameters[parameter.key()].grad();
      if (parameter.key() == tied && count > 1) {
        EXPECT_TRUE(torch::allclose(found, wanted, 1e-4, 1e-6));
      } else {
        EXPECT_TRUE(torch::equal(found, wanted)) << schedule << ": " << parameter.key();
      }
    }
  });
}

TEST(TransformerStages, two_stages_of_gpt_have_the_bits_of_the_whole_model) {
  for (const int count : {1, 4}) {
    std::vector<Tensors> batches;
    for (int i = 0; i < count; ++i) batches.push_back({tokens_of(i, 5)});
    torch::manual_seed(3);
    models::Gpt gpt(small_gpt());
    const WholeModel whole =
        run_whole(gpt, batches, [&](const Tensors& inputs) { return gpt->forward(inputs[0]); });
    for (const char* schedule : {"1f1b", "zero-bubble"})
      expect_the_bits_of<models::GptStage>(whole, small_gpt(), "wte.weight", schedule, batches);
  }
}

// With padding, so that the second stage needs the mask, and lengths that change.
TEST(TransformerStages, two_stages_of_bert_have_the_bits_of_the_whole_model) {
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
    for (const char* schedule : {"1f1b", "zero-bubble"})
      expect_the_bits_of<models::BertStage>(whole, small_bert(), "words.weight", schedule, batches);
  }
}

}  // namespace
}  // namespace paceline
