// GPT cut into stages: the whole model's names, weights and bits.

#include "paceline/models/gpt_stage.h"

#include <algorithm>

#include <gtest/gtest.h>

#include <torch/torch.h>

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

TEST(GptStage, stages_one_after_the_other_are_the_whole_model) {
  const at::Tensor text = torch::arange(10).view({2, 5});
  for (const double rotary_base : {0.0, 10'000.0}) {
    const GptOptions options = five_blocks(rotary_base);
    torch::manual_seed(3);
    Gpt whole(options);
    const auto weights = whole->named_parameters();
    for (const int stages : {1, 2, 5}) {
      at::Tensor states = text;
      std::size_t num_parameters = 0;
      for (int index = 0; index < stages; ++index) {
        torch::manual_seed(3);
        GptStage stage(options, Layers{}, gpt_stage_range(options, index, stages));
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
      EXPECT_TRUE(torch::equal(states, whole->forward(text)));
    }
  }
}

TEST(GptStage, several_as_one_module_have_the_whole_models_names) {
  const GptOptions options = five_blocks(0);
  Gpt whole(options);
  const auto all = one_module(
      {GptStage(options, Layers{}, GptRange{0, 2}), GptStage(options, Layers{}, GptRange{3, 4})});
  std::vector<std::string> names, wanted;
  for (const auto& parameter : all->named_parameters()) names.push_back(parameter.key());
  for (const auto& parameter : whole->named_parameters()) {
    const std::string& name = parameter.key();
    const bool is_elsewhere = name.rfind("h.2.", 0) == 0 || name.rfind("h.4.", 0) == 0;
    if (!is_elsewhere && name.rfind("ln_f", 0) != 0) wanted.push_back(name);
  }
  std::sort(names.begin(), names.end());
  std::sort(wanted.begin(), wanted.end());
  EXPECT_EQ(names, wanted);
}

// Of GPT-2: 6 for each weight of its matrix products, and attention's 12 x layers x width x
// context.
TEST(Gpt, operations_of_a_token_are_those_of_the_papers_formula) {
  const GptOptions gpt2;
  const double weights = 12.0 * 12 * 768 * 768 + 768.0 * 50257;
  EXPECT_DOUBLE_EQ(operations_per_token(gpt2), 6 * weights + 12.0 * 12 * 768 * 1024);
  GptOptions grouped = gpt2;
  grouped.key_value_heads = 3;  // a quarter of keys and values
  EXPECT_DOUBLE_EQ(operations_per_token(gpt2) - operations_per_token(grouped),
                   6 * 12 * 2 * 768 * 768 * 0.75);
}

TEST(GptStage, blocks_are_dealt_out_evenly_and_odd_ranges_refused) {
  const GptOptions options = five_blocks(0);
  std::vector<std::int64_t> lengths;
  for (int index = 0; index < 3; ++index) {
    const GptRange range = gpt_stage_range(options, index, 3);
    lengths.push_back(range.end - range.begin);
  }
  EXPECT_EQ(lengths, (std::vector<std::int64_t>{2, 2, 1}));
  expect_error(ErrorCode::kInvalid, {"6 stages", "5 blocks"},
               [&] { gpt_stage_range(options, 0, 6); });
  expect_error(ErrorCode::kInvalid, {"blocks 3 to 3"}, [&] {
    GptStage(options, Layers{}, GptRange{3, 3});
  });
  expect_error(ErrorCode::kInvalid, {"blocks 3 to 6"}, [&] {
    GptStage(options, Layers{}, GptRange{3, 6});
  });
}

}  // namespace
}  // namespace paceline::models
