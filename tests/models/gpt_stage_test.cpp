// GPT cut into stages: the whole model's names, weights and bits.

#include "paceline/models/gpt_stage.h"

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
