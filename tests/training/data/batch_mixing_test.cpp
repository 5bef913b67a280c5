#include "paceline/training/data/batch_mixing.h"

#include <torch/torch.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/logical_shards.h"

#include "tests/harness/expect_error.h"

namespace paceline::data {
namespace {

constexpr std::int64_t kClasses = 5;
using Indices = std::vector<std::int64_t>;

// All pixels of image i are i + 1; its class is i % 5.
std::shared_ptr<Dataset> plain(std::int64_t count = 20) {
  const auto values = torch::arange(1, count + 1, torch::kFloat).view({-1, 1, 1, 1});
  return std::make_shared<TensorDataset>(
      "plain", std::vector<at::Tensor>{values.expand({count, 3, 8, 10}).contiguous(),
                                       torch::arange(count, torch::kLong).remainder(kClasses)});
}

std::vector<at::Tensor> mixed(const BatchMixingOptions& options, const Indices& indices,
                              std::int64_t epoch = 0) {
  return MixedBatches(plain(), options).batch(indices, epoch);
}

at::Tensor one_hot(const Indices& labels) {
  return torch::one_hot(torch::tensor(labels), kClasses).to(torch::kFloat);
}

TEST(BatchMixing, label_smoothing_gives_the_loss_of_pytorchs) {
  const auto logits = torch::randn({4, kClasses});
  const auto batch = mixed({.num_classes = kClasses, .label_smoothing = 0.1}, {3, 7, 0, 4});
  namespace F = torch::nn::functional;
  const auto own = F::cross_entropy(logits, batch[1]);
  const auto theirs = F::cross_entropy(logits, torch::tensor({3, 2, 0, 4}),
                                       F::CrossEntropyFuncOptions().label_smoothing(0.1));
  EXPECT_NEAR(own.item<float>(), theirs.item<float>(), 1e-6);
  EXPECT_TRUE(batch[0].equal(plain()->batch(Indices{3, 7, 0, 4}, 0)[0]));
}

TEST(BatchMixing, mixup_averages_each_image_and_label_with_the_one_before_it) {
  const BatchMixingOptions options{.num_classes = kClasses, .mixup_alpha = 1};
  for (std::int64_t epoch = 0; epoch < 20; ++epoch) {
    const Indices indices = {2, 9, 13};
    const auto batch = mixed(options, indices, epoch);
    const auto images = plain()->batch(indices, 0)[0], labels = one_hot({2, 4, 3});
    // The pixels of image 2 are 3; those of image 13, which precedes it in the batch, are 14.
    const double share = (14 - batch[0][0][0][0][0].item<double>()) / 11;
    EXPECT_GE(share, -1e-6);
    EXPECT_LE(share, 1 + 1e-6);
    EXPECT_TRUE(batch[0].allclose(images * share + images.roll(1, 0) * (1 - share), 1e-5, 1e-5));
    EXPECT_TRUE(batch[1].allclose(labels * share + labels.roll(1, 0) * (1 - share), 1e-5, 1e-5));
  }
}

TEST(BatchMixing, cutmix_pastes_a_rectangle_and_weighs_labels_by_its_area) {
  const BatchMixingOptions options{.num_classes = kClasses, .cutmix_alpha = 1};
  bool some = false, moved = false;
  for (std::int64_t epoch = 0; epoch < 40; ++epoch) {
    const Indices indices = {2, 9, 13};
    const auto batch = mixed(options, indices, epoch);
    const auto images = plain()->batch(indices, 0)[0];
    const auto pasted = batch[0].ne(images), own = pasted[0][0];
    EXPECT_TRUE(batch[0].equal(torch::where(pasted, images.roll(1, 0), images)));
    EXPECT_TRUE(pasted.equal(own.expand_as(pasted)));
    const auto area = own.sum().item<std::int64_t>();
    const auto rows = own.any(1).sum().item<std::int64_t>();
    const auto columns = own.any(0).sum().item<std::int64_t>();
    EXPECT_EQ(area, rows * columns);
    EXPECT_NEAR(batch[1][0][3].item<double>(), static_cast<double>(area) / 80, 1e-6);
    EXPECT_NEAR(batch[1].sum().item<double>(), 3, 1e-5);
    some |= area > 0 && area < 80;
    moved |= own[0][0].item<bool>();
  }
  EXPECT_TRUE(some && moved);
}

TEST(BatchMixing, with_both_a_batch_takes_either) {
  const BatchMixingOptions options{.num_classes = kClasses, .mixup_alpha = 1, .cutmix_alpha = 1};
  int averaged = 0;
  for (std::int64_t epoch = 0; epoch < 200; ++epoch) {
    const auto image = mixed(options, {2, 9, 13}, epoch)[0][0];
    averaged += image.ne(3).logical_and(image.ne(14)).any().item<bool>();
  }
  EXPECT_NEAR(averaged, 100, 45);
}

TEST(BatchMixing, what_is_drawn_follows_from_seed_epoch_and_first_sample) {
  BatchMixingOptions options{.num_classes = kClasses, .mixup_alpha = 1};
  const auto first = mixed(options, {2, 9, 13}, 4);
  EXPECT_TRUE(first[0].equal(mixed(options, {2, 9, 13}, 4)[0]));
  EXPECT_FALSE(first[0].equal(mixed(options, {2, 9, 13}, 5)[0]));
  options.seed = 1;
  EXPECT_FALSE(first[0].equal(mixed(options, {2, 9, 13}, 4)[0]));
  EXPECT_TRUE(mixed(options, {7}, 0)[0].allclose(torch::full({1, 3, 8, 10}, 8.0)));
}

TEST(BatchMixing, a_label_beyond_the_classes_is_refused_with_its_sample) {
  expect_error(ErrorCode::kInvalid, {"sample 9 of plain", "label 4", "[0, 4)"}, [] {
    mixed({.num_classes = 4, .mixup_alpha = 1}, {0, 9});
  });
}

TEST(BatchMixing, options_and_data_that_do_not_fit_are_refused) {
  const auto refused = [](const std::shared_ptr<Dataset>& dataset,
                          const BatchMixingOptions& options) {
    expect_error(ErrorCode::kInvalid, {"mixed batches"},
                 [&] { MixedBatches(dataset, options).batch(Indices{0}, 0); });
  };
  refused(plain(), {});
  refused(plain(), {.num_classes = 5, .mixup_alpha = -1});
  refused(plain(), {.num_classes = 5, .label_smoothing = 1.5});
  const auto of = [](std::vector<at::Tensor> tensors) {
    return std::make_shared<TensorDataset>("t", std::move(tensors));
  };
  refused(of({torch::zeros({2, 3})}), {.num_classes = 5});
  refused(of({torch::zeros({2, 3}, torch::kLong), torch::zeros({2}, torch::kLong)}),
          {.num_classes = 5});
  refused(of({torch::zeros({2, 3}), torch::zeros({2})}), {.num_classes = 5});
  refused(of({torch::zeros({2, 3}), torch::zeros({2}, torch::kLong)}),
          {.num_classes = 5, .cutmix_alpha = 1});
}

}  // namespace
}  // namespace paceline::data
