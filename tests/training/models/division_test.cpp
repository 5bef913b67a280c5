// The part of a whole weight that a layer holds.

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/training/models/divided_layer.h"
#include "paceline/training/models/gpt.h"
#include "paceline/training/models/layer_functions.h"
#include "paceline/training/models/layers.h"

namespace paceline::models {
namespace {

TEST(Division, a_part_has_its_share_of_every_section) {
  const at::Tensor whole = torch::arange(12).view({6, 2});
  const Division second{.dim = 0, .sections = {4, 2}, .parts = 2, .part = 1};
  EXPECT_TRUE(torch::equal(second.part_of(whole), torch::tensor({{4, 5}, {6, 7}, {10, 11}})));
  EXPECT_EQ(second.whole_sizes({3, 2}), (std::vector<std::int64_t>{6, 2}));
}

TEST(Division, all_parts_joined_are_the_whole) {
  const at::Tensor whole = torch::arange(2 * 24 * 3).view({2, 24, 3});
  for (const std::int64_t parts : {1, 2, 4}) {
    std::vector<at::Tensor> all;
    for (std::int64_t part = 0; part < parts; ++part)
      all.push_back(
          Division{.dim = 1, .sections = {8, 4, 12}, .parts = parts, .part = part}.part_of(whole));
    const Division any{.dim = 1, .sections = {8, 4, 12}, .parts = parts};
    EXPECT_TRUE(torch::equal(any.joined(all), whole)) << parts;
    EXPECT_EQ(any.whole_sizes(all.front().sizes()), whole.sizes().vec());
  }
}

TEST(Division, parameters_are_visited_in_the_order_of_their_names_in_the_module) {
  Gpt model(GptOptions{.vocabulary = 8, .context = 4, .layers = 2, .width = 8, .heads = 2});
  std::vector<std::string> names;
  visit_parameters(*model, [&](const std::string& name, at::Tensor&, const auto& division) {
    EXPECT_FALSE(division);
    names.push_back(name);
  });
  EXPECT_EQ(names, model->named_parameters().keys());
}

}  // namespace
}  // namespace paceline::models
