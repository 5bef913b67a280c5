// GPT and BERT cut into stages have the whole model's names and weights, and compute bitwise the
// same.

#include <algorithm>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/training/models/transformer_stage.h"

#include "tests/harness/expect_error.h"

namespace paceline::models {
namespace {

GptOptions five_blocks(double rotary_base) {
  return {.vocabulary = 19,
          .context = 8,
          .layers = 5,
          .width = 8,
          .heads = 2,
          .rotary_base = rotary_base,
          .dropout = 0};
}

BertOptions five_blocks_of_bert() {
  return {.vocabulary = 19,
          .context = 8,
          .layers = 5,
          .width = 8,
          .heads = 2,
          .feed_forward = 12,
          .dropout = 0};
}

// For several numbers of stages: run one after the other, the stages compute what the whole model
// computes. Together they have each of its names and weights once, and the tied weight twice.
template <class Stage, class Options>
void expect_the_whole_model(const Options& options, const torch::nn::Module& whole,
                            const std::vector<at::Tensor>& inputs, const at::Tensor& wanted) {
  const auto weights = whole.named_parameters();
  for (const int stages : {1, 2, 5}) {
    std::vector<at::Tensor> states = inputs;
    std::size_t num_parameters = 0;
    for (int index = 0; index < stages; ++index) {
      torch::manual_seed(3);
      Stage stage(options, Layers{}, BlockRange::of_stage(options.layers, index, stages));
      for (const auto& parameter : stage->named_parameters()) {
        ASSERT_TRUE(weights.contains(parameter.key())) << parameter.key();
        EXPECT_TRUE(torch::equal(parameter.value(), weights[parameter.key()]));
        ++num_parameters;
      }
      EXPECT_EQ(stage->tied_weights().size(),
                stages > 1 && (index == 0 || index + 1 == stages) ? 1u : 0u);
      states = stage->forward(states);
    }
    EXPECT_EQ(num_parameters, weights.size() + (stages > 1 ? 1 : 0));
    ASSERT_EQ(states.size(), 1u);
    EXPECT_TRUE(torch::equal(states[0], wanted)) << stages << " stages";
  }
}

TEST(Stages, of_gpt_one_after_the_other_are_the_whole_model) {
  const at::Tensor text = torch::arange(10).view({2, 5});
  for (const double rotary_base : {0.0, 10'000.0}) {
    const GptOptions options = five_blocks(rotary_base);
    torch::manual_seed(3);
    Gpt whole(options);
    expect_the_whole_model<GptStage>(options, *whole, {text}, whole->forward(text));
  }
}

TEST(Stages, of_bert_one_after_the_other_are_the_whole_model_with_segments_and_padding) {
  const at::Tensor text = torch::arange(10).view({2, 5});
  const at::Tensor segments = (text % 5 > 2).to(torch::kLong);
  const at::Tensor is_token = text < 8;  // the second sequence is padded
  const BertOptions options = five_blocks_of_bert();
  torch::manual_seed(3);
  Bert whole(options);
  expect_the_whole_model<BertStage>(options, *whole, {text}, whole->forward(text));
  expect_the_whole_model<BertStage>(options, *whole, {text, segments},
                                    whole->forward(text, segments));
  const at::Tensor masked = whole->forward(text, segments, is_token);
  EXPECT_FALSE(torch::equal(masked, whole->forward(text, segments)));
  expect_the_whole_model<BertStage>(options, *whole, {text, segments, is_token}, masked);
}

// The stages `ranges`, as one module, have all parameters of `whole` except those that begin with
// `elsewhere`.
template <class Stage, class Options>
void expect_the_names_of(const Options& options, const torch::nn::Module& whole,
                         const std::vector<BlockRange>& ranges,
                         const std::vector<std::string>& elsewhere) {
  std::vector<Stage> stages;
  for (const BlockRange range : ranges) stages.emplace_back(options, Layers{}, range);
  std::vector<std::string> names, wanted;
  for (const auto& parameter : one_module(stages)->named_parameters())
    names.push_back(parameter.key());
  for (const auto& parameter : whole.named_parameters()) {
    const std::string& name = parameter.key();
    if (std::none_of(elsewhere.begin(), elsewhere.end(),
                     [&](const std::string& prefix) { return name.starts_with(prefix); }))
      wanted.push_back(name);
  }
  std::sort(names.begin(), names.end());
  std::sort(wanted.begin(), wanted.end());
  EXPECT_EQ(names, wanted);
}

TEST(Stages, several_as_one_module_have_the_whole_models_names) {
  expect_the_names_of<GptStage>(five_blocks(0), *Gpt(five_blocks(0)), {{0, 2}, {3, 4}},
                                {"h.2.", "h.4.", "ln_f"});
  const BertOptions bert = five_blocks_of_bert();
  expect_the_names_of<BertStage>(bert, *Bert(bert), {{0, 2}, {3, 4}},
                                 {"blocks.2.", "blocks.4.", "head"});
  expect_the_names_of<BertStage>(
      bert, *Bert(bert), {{2, 3}, {4, 5}},
      {"blocks.0.", "blocks.1.", "blocks.3.", "positions", "segments", "embedding_norm"});
}

// GPT-2 needs 6 operations for each weight of its matrix products and, for attention, 12 x layers x
// width x context operations.
TEST(Gpt, operations_of_a_token_are_those_of_the_papers_formula) {
  const GptOptions gpt2;
  const double weights = 12.0 * 12 * 768 * 768 + 768.0 * 50257;
  EXPECT_DOUBLE_EQ(operations_per_token(gpt2), 6 * weights + 12.0 * 12 * 768 * 1024);
  GptOptions grouped = gpt2;
  grouped.key_value_heads = 3;  // a quarter of the keys and values
  EXPECT_DOUBLE_EQ(operations_per_token(gpt2) - operations_per_token(grouped),
                   6 * 12 * 2 * 768 * 768 * 0.75);
}

TEST(Stages, blocks_are_dealt_out_evenly_and_odd_ranges_refused) {
  const GptOptions options = five_blocks(0);
  std::vector<std::int64_t> lengths;
  for (int index = 0; index < 3; ++index) {
    const BlockRange range = BlockRange::of_stage(5, index, 3);
    lengths.push_back(range.end - range.begin);
  }
  EXPECT_EQ(lengths, (std::vector<std::int64_t>{2, 2, 1}));
  expect_error(ErrorCode::kInvalid, {"6 stages", "5 blocks"},
               [&] { BlockRange::of_stage(5, 0, 6); });
  expect_error(ErrorCode::kInvalid, {"blocks 3 to 3"}, [&] {
    GptStage(options, Layers{}, BlockRange{3, 3});
  });
  expect_error(ErrorCode::kInvalid, {"blocks 3 to 6"}, [&] {
    BertStage(five_blocks_of_bert(), Layers{}, BlockRange{3, 6});
  });
}

}  // namespace
}  // namespace paceline::models
