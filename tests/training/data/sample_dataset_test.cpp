#include <gmock/gmock.h>

#include <torch/torch.h>

#include "paceline/engine/core/error.h"
#include "paceline/training/data/data_loader.h"
#include "paceline/training/data/dataset.h"

#include "tests/harness/expect_error.h"

namespace paceline::data {
namespace {

// Sample i: the i + 1 numbers from i on, and the epoch.
Sample load(std::int64_t index, std::int64_t epoch) {
  return {torch::arange(index, 2 * index + 1), torch::tensor(epoch)};
}

TEST(SampleDataset, a_loader_pads_each_batch_to_its_longest_sample) {
  for (const int threads : {0, 2}) {
    const auto dataset = std::make_shared<SampleDataset>("ramps", 5, load, padded({-1}));
    DataLoader loader(dataset, std::vector<std::int64_t>{2, 0, 4},
                      {.batch_size = 2, .num_threads = threads});
    auto running = loader.epoch(7);
    const auto first = running.next();
    EXPECT_TRUE(first->data.equal(torch::tensor({{2, 3, 4}, {0, -1, -1}}, torch::kLong)));
    EXPECT_TRUE(first->target.equal(torch::tensor({7, 7}, torch::kLong)));
    EXPECT_TRUE(running.next()->data.equal(torch::tensor({{4, 5, 6, 7, 8}}, torch::kLong)));
  }
}

TEST(Collate, padding_fills_every_dimension_behind_with_the_tensors_value) {
  const std::vector<Sample> samples{{torch::ones({1, 2}), torch::tensor({1, 2})},
                                    {torch::ones({2, 1}), torch::tensor({3})}};
  const auto batch = padded({0.5})(samples);
  EXPECT_TRUE(batch[0].equal(
      torch::tensor({1.0, 1.0, 0.5, 0.5, 1.0, 0.5, 1.0, 0.5}, torch::kFloat).view({2, 2, 2})));
  EXPECT_TRUE(batch[1].equal(torch::tensor({{1, 2}, {3, 0}}, torch::kLong)));
}

TEST(Collate, stacking_is_torch_stack_and_padding_equal_samples_is_the_same) {
  const std::vector<Sample> samples{{torch::rand({3, 2})}, {torch::rand({3, 2})}};
  const auto wanted = torch::stack({samples[0][0], samples[1][0]});
  EXPECT_TRUE(stacked(samples)[0].equal(wanted));
  EXPECT_TRUE(padded()(samples)[0].equal(wanted));
}

TEST(Collate, samples_that_do_not_go_together_are_refused_with_their_place) {
  const Sample one{torch::ones({2}), torch::tensor(1)};
  const auto refused = [&](const Sample& other, const std::string& words) {
    for (const Collate& collate : {Collate(stacked), padded()})
      expect_error(ErrorCode::kInvalid, {words}, [&] { collate({one, other}); });
  };
  refused({torch::ones({2})}, "sample 0 of the batch has 2 tensors, sample 1 has 1");
  refused({torch::ones({2}, torch::kLong), torch::tensor(1)},
          "tensor 0 is Float [2] in sample 0 of the batch and Long [2] in sample 1");
  refused({torch::ones({2}), torch::ones({1}, torch::kLong)}, "tensor 1");
  refused({torch::ones({2}), at::Tensor()}, "tensor 1 of sample 1 of the batch is undefined");
  expect_error(ErrorCode::kInvalid, {"Float [3] in sample 1; padded()"}, [&] {
    stacked({one, {torch::ones({3}), torch::tensor(1)}});
  });
}

TEST(SampleDataset, what_is_no_data_set_is_refused) {
  expect_error(ErrorCode::kInvalid, {"dataset none: 0 samples"},
               [] { const SampleDataset none("none", 0, load); });
  expect_error(ErrorCode::kInvalid, {"a function that loads or collates is missing"},
               [] { const SampleDataset none("none", 1, nullptr); });
}

}  // namespace
}  // namespace paceline::data
