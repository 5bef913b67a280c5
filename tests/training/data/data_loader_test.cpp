#include "paceline/training/data/data_loader.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <span>
#include <stdexcept>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <torch/torch.h>

#include "paceline/engine/core/error.h"
#include "paceline/training/data/image_dataset.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/says.h"

namespace paceline::data {
namespace {

using harness::Says;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ImageDataset sample_images(std::int64_t size) {
  torch::manual_seed(1);
  return {.name = "sample",
          .images = torch::randint(256, {size, 3, 8, 8}, torch::kUInt8),
          .labels = torch::arange(size) % 10,
          .classes = std::vector<std::string>(10, "class")};
}

std::shared_ptr<const Dataset> sample_dataset(std::int64_t size,
                                              const ImageSamplesOptions& options = {}) {
  return std::make_shared<const ImageSamples>(sample_images(size), options);
}

// Words and their number; the length differs between batches, and the third sample is broken.
class Sentences : public Dataset {
 public:
  std::string name() const override { return "sentences"; }
  std::int64_t size() const override { return 6; }
  std::vector<at::Tensor> batch(std::span<const std::int64_t> indices,
                                std::int64_t epoch) const override {
    std::int64_t longest = 0;
    for (const std::int64_t index : indices) longest = std::max(longest, index + epoch);
    auto words = torch::full({std::ssize(indices), longest}, -1L);
    for (std::size_t i = 0; i < indices.size(); ++i) {
      if (indices[i] == 2) throw std::runtime_error("sentence 2 has no words");
      words[static_cast<std::int64_t>(i)].narrow(0, 0, indices[i] + epoch).fill_(indices[i]);
    }
    return {words, words.ne(-1).sum(1), words.eq(-1)};
  }
};

std::vector<Batch> epoch_of(DataLoader& loader, std::int64_t epoch, std::int64_t consumed = 0) {
  std::vector<Batch> batches;
  for (Batch& batch : loader.epoch(epoch, consumed)) batches.push_back(std::move(batch));
  return batches;
}

void expect_equal(const std::vector<Batch>& a, const std::vector<Batch>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].indices, b[i].indices);
    EXPECT_TRUE(a[i].target.equal(b[i].target));
    EXPECT_TRUE(a[i].data.equal(b[i].data));
  }
}

TEST(DataLoader, an_epoch_that_was_padded_ends_where_any_number_of_ranks_can_go_on) {
  const auto dataset = sample_dataset(9);
  DataLoader four(dataset, DistributedSampler(9, 4, 1), {.batch_size = 1});
  EXPECT_EQ(epoch_of(four, 0).size(), 3U);  // 12 samples, of which 3 are padding
  EXPECT_EQ(four.consumed(), 9);
  for (const int ranks : {1, 2, 3, 4, 8}) {
    DataLoader next(dataset, DistributedSampler(9, ranks, 0), {.batch_size = 1});
    EXPECT_TRUE(epoch_of(next, 0, four.consumed()).empty()) << ranks;
    EXPECT_EQ(next.consumed(), 9);
  }
}

TEST(DataLoader, reads_tensors_in_any_memory_order) {
  const auto plain = sample_images(10);
  auto other = plain;
  other.images = plain.images.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2});
  other.labels = torch::stack({plain.labels, plain.labels}, 1).select(1, 0);
  ASSERT_FALSE(other.images.is_contiguous() || other.labels.is_contiguous());
  const DistributedSampler sampler(10, 1, 0);
  DataLoader wanted(std::make_shared<ImageSamples>(plain), sampler, {.batch_size = 4});
  DataLoader loader(std::make_shared<ImageSamples>(other), sampler, {.batch_size = 4});
  expect_equal(epoch_of(loader, 0), epoch_of(wanted, 0));
}

TEST(DataLoader, an_epoch_ends_when_another_one_begins) {
  DataLoader loader(sample_dataset(8), DistributedSampler(8, 2, 1), {.batch_size = 2});
  Epoch first = loader.epoch(0);
  EXPECT_TRUE(first.next());
  Epoch second = loader.epoch(1);
  expect_error(
      ErrorCode::kInvalid,
      {"rank 1: data loader: a loop takes a batch of an epoch that ended when epoch(1) was "
       "called",
       "make a loader for each loop"},
      [&] { first.next(); });
  EXPECT_TRUE(second.next());
  EXPECT_TRUE(second.next());
  EXPECT_TRUE(loader.exhausted());
  EXPECT_FALSE(second.next());
  EXPECT_FALSE(second.next()) << "an epoch stays at its end";
}

TEST(DataLoader, a_loop_may_leave_an_epoch_and_go_on_with_it) {
  DataLoader loader(sample_dataset(8), DistributedSampler(8, 1, 0, {.shuffle = false}),
                    {.batch_size = 2});
  Epoch epoch = loader.epoch(0);
  for (const Batch& batch : epoch) {
    EXPECT_THAT(batch.indices, ElementsAre(0, 1));
    break;
  }
  EXPECT_EQ(loader.consumed(), 2);
  std::int64_t next = 2;
  for (const Batch& batch : epoch) {
    EXPECT_THAT(batch.indices, ElementsAre(next, next + 1));
    next += 2;
  }
  EXPECT_EQ(next, 8);
}

TEST(Batch, a_weighted_loss_is_the_loss_times_the_weight) {
  const at::Tensor loss = torch::tensor(3.0F);
  EXPECT_TRUE(Batch().weighted(loss).is_same(loss)) << "nothing to compute with a weight of 1";
  EXPECT_EQ(Batch{.weight = 0.5}.weighted(loss).item<float>(), 1.5F);
}

TEST(DataLoader, warns_of_a_loop_that_does_not_begin_with_the_restored_epoch) {
  const auto warnings = [](std::int64_t first_epoch) {
    DataLoader loader(sample_dataset(8), DistributedSampler(8, 1, 0), {.batch_size = 2});
    loader.set_position({.epoch = 2, .consumed = 4});
    testing::internal::CaptureStderr();
    for (const std::int64_t epoch : {first_epoch, first_epoch + 1})
      for (const Batch& batch : loader.epoch(epoch)) EXPECT_EQ(batch.indices.size(), 2U);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(warnings(0), ::testing::AllOf(HasSubstr("epoch 2, after 4 samples"),
                                            HasSubstr("began epoch(0): it repeats epochs"),
                                            HasSubstr("loader.position().epoch")));
  EXPECT_THAT(warnings(3), HasSubstr("it leaves out epochs"));
  EXPECT_EQ(warnings(2), "");
}

TEST(DataLoader, warns_once_of_a_shuffled_epoch_that_is_repeated) {
  const auto warnings = [](bool shuffle, const std::vector<std::pair<int, int>>& epochs) {
    DataLoader loader(sample_dataset(8), DistributedSampler(8, 1, 0, {.shuffle = shuffle}),
                      {.batch_size = 2});
    testing::internal::CaptureStderr();
    for (const auto& [epoch, consumed] : epochs) epoch_of(loader, epoch, consumed);
    return testing::internal::GetCapturedStderr();
  };
  const std::string text = warnings(true, {{0, 0}, {0, 0}, {0, 0}});
  EXPECT_THAT(text, HasSubstr("epoch(0) was called for a second pass"));
  EXPECT_EQ(text.find("second pass"), text.rfind("second pass"));
  EXPECT_EQ(warnings(true, {{0, 0}, {1, 0}, {1, 4}}), "");  // the last call resumes in the middle
  EXPECT_EQ(warnings(false, {{0, 0}, {0, 0}}), "");
}

TEST(DataLoader, tensors_that_are_no_labelled_images_are_refused) {
  const auto refused = [](const std::function<void(ImageDataset&)>& change) {
    auto images = sample_images(4);
    change(images);
    try {
      const ImageSamples samples(images);
    } catch (const Error& error) {
      return error.code() == ErrorCode::kInvalid ? std::string(error.what()) : "other code";
    }
    return std::string("taken");
  };
  EXPECT_EQ(refused([](ImageDataset&) {}), "taken");
  EXPECT_THAT(refused([](ImageDataset& d) { d.images = d.images.to(torch::kFloat); }),
              Says("dataset.images_refused"));
  EXPECT_THAT(refused([](ImageDataset& d) { d.images = d.images.select(1, 0); }),
              Says("dataset.images_refused"));
  EXPECT_THAT(refused([](ImageDataset& d) { d.labels = d.labels.to(torch::kInt); }),
              Says("dataset.labels_refused"));
  EXPECT_THAT(refused([](ImageDataset& d) { d.labels = d.labels.narrow(0, 0, 3); }),
              Says("dataset.labels_too_few", "sample", 4, 3));
  EXPECT_THAT(refused([](ImageDataset& d) { d.labels = at::Tensor(); }), HasSubstr("labels"));
}

TEST(DataLoader, gives_what_the_tensors_say_in_the_samplers_order) {
  const auto dataset = sample_images(50);
  DistributedSampler sampler(50, 2, 1);
  DataLoader loader(sample_dataset(50, {.mean = {0.4F, 0.5F, 0.6F}, .std = {0.1F, 0.2F, 0.3F}}),
                    sampler, {.batch_size = 4});
  EXPECT_EQ(loader.num_batches(), 7);
  const auto mean = torch::tensor({0.4F, 0.5F, 0.6F}).view({3, 1, 1});
  const auto std = torch::tensor({0.1F, 0.2F, 0.3F}).view({3, 1, 1});
  std::vector<std::int64_t> seen;
  for (const auto& batch : epoch_of(loader, 3)) {
    const auto places = torch::tensor(batch.indices);
    const auto images = dataset.images.index_select(0, places).to(torch::kFloat);
    EXPECT_TRUE(batch.data.equal((images / 255 - mean) / std));
    EXPECT_TRUE(batch.target.equal(dataset.labels.index_select(0, places)));
    seen.insert(seen.end(), batch.indices.begin(), batch.indices.end());
  }
  sampler.set_epoch(3);
  EXPECT_EQ(seen, sampler.indices());
}

TEST(DataLoader, threads_prefetch_and_memory_format_change_nothing_in_the_values) {
  const auto run = [&](int threads, int prefetch, bool channels_last) {
    const auto dataset = sample_dataset(
        101, {.crop_padding = 2, .random_flip = true, .channels_last = channels_last, .seed = 5});
    DataLoader loader(dataset, DistributedSampler(101, 1, 0, {.seed = 5}),
                      {.batch_size = 8, .num_threads = threads, .prefetch = prefetch});
    auto batches = epoch_of(loader, 0);
    for (auto& batch : epoch_of(loader, 1)) batches.push_back(batch);
    return batches;
  };
  const auto reference = run(0, 1, false);
  EXPECT_EQ(reference.size(), 26U);
  for (const int threads : {1, 2, 4}) {
    for (const int prefetch : {1, 2, 16}) expect_equal(run(threads, prefetch, false), reference);
  }
  const auto last = run(2, 2, true);
  expect_equal(last, reference);
  EXPECT_TRUE(last[0].data.is_contiguous(at::MemoryFormat::ChannelsLast));
}

TEST(DataLoader, a_sample_looks_the_same_for_every_world_size) {
  const auto dataset = sample_dataset(48, {.crop_padding = 2, .random_flip = true});
  const auto images_of = [&](int replicas) {
    auto images = torch::zeros({48, 3, 8, 8});
    for (int rank = 0; rank < replicas; ++rank) {
      DataLoader loader(dataset, DistributedSampler(48, replicas, rank), {.batch_size = 5});
      for (const auto& batch : epoch_of(loader, 0)) {
        images.index_copy_(0, torch::tensor(batch.indices), batch.data);
      }
    }
    return images;
  };
  const auto alone = images_of(1);
  for (const int replicas : {2, 3, 4}) EXPECT_TRUE(images_of(replicas).equal(alone));
}

TEST(DataLoader, resumes_after_any_batch_with_the_batch_that_follows) {
  const auto dataset = sample_dataset(50, {.crop_padding = 1, .random_flip = true});
  const DataLoaderOptions options{.batch_size = 4};
  const DistributedSampler sampler(50, 2, 1);
  DataLoader loader(dataset, sampler, options);
  auto running = loader.epoch(3);
  std::vector<std::int64_t> positions;
  std::vector<Batch> whole;
  while (auto batch = running.next()) {
    whole.push_back(std::move(*batch));
    positions.push_back(loader.consumed());
  }
  EXPECT_EQ(positions.front(), 8);
  EXPECT_EQ(positions.back(), 50);
  for (std::size_t taken = 1; taken <= positions.size(); ++taken) {
    DataLoader resumed(dataset, sampler, options);
    const auto rest = epoch_of(resumed, 3, positions[taken - 1]);
    expect_equal(rest, {whole.begin() + static_cast<std::ptrdiff_t>(taken), whole.end()});
    EXPECT_EQ(resumed.consumed(), 50);
    EXPECT_EQ(epoch_of(resumed, 4).size(), whole.size());
  }
}

TEST(DataLoader, drop_last_leaves_out_what_is_not_full) {
  DataLoader loader(sample_dataset(10), DistributedSampler(10, 1, 0, {.shuffle = false}),
                    {.batch_size = 4, .drop_last = true});
  EXPECT_EQ(loader.num_batches(), 2);
  const auto batches = epoch_of(loader, 0);
  ASSERT_EQ(batches.size(), 2U);
  EXPECT_THAT(batches[1].indices, ElementsAre(4, 5, 6, 7));
}

TEST(DataLoader, an_epoch_of_which_nothing_is_left_is_an_error) {
  const auto begin = [](const SamplerOptions& sampling, const DataLoaderOptions& options) {
    DataLoader loader(sample_dataset(3), DistributedSampler(3, 4, 1, sampling), options);
    auto running = loader.epoch(0);
    return running.next()->indices.size();
  };
  expect_error(
      ErrorCode::kInvalid,
      {"rank 1: data loader: drop_last leaves no batch of an epoch: 3 samples for 4 ranks, "
       "and a batch size of each rank of 8"},
      [&] { begin({.drop_last = true}, {.batch_size = 8}); });
  expect_error(ErrorCode::kInvalid, {"a batch size of each rank of 2"},
               [&] { begin({}, {.batch_size = 2, .drop_last = true}); });
  expect_error(ErrorCode::kInvalid, {"a global batch size of 4"},
               [&] { begin({}, {.global_batch_size = 4, .drop_last = true}); });
  EXPECT_EQ(begin({}, {.batch_size = 8}), 1U);
}

TEST(DataLoader, a_global_batch_is_taken_up_where_another_number_of_ranks_left_it) {
  const auto dataset = sample_dataset(50);
  const auto loader_of = [&](int ranks, int rank) {
    return std::make_unique<DataLoader>(
        dataset, DistributedSampler(50, ranks, rank, {.seed = 7}),
        DataLoaderOptions{.global_batch_size = 12, .micro_batch_size = 4});
  };
  const auto whole = loader_of(1, 0);
  EXPECT_EQ(whole->num_batches(), 5);
  std::vector<std::int64_t> order;
  for (const auto& batch : epoch_of(*whole, 1)) {
    order.insert(order.end(), batch.indices.begin(), batch.indices.end());
  }
  EXPECT_EQ(whole->consumed(), 50);
  const auto first = loader_of(2, 1);
  auto running = first->epoch(1);
  auto batch = running.next();  // half of this rank's 6 samples
  EXPECT_FALSE(batch->ends_step);
  EXPECT_EQ(first->consumed(), 0) << "the middle of a step is no position";
  EXPECT_TRUE(running.next()->ends_step);
  EXPECT_EQ(first->consumed(), 12);
  const auto next = epoch_of(*loader_of(3, 2), 1, first->consumed());
  EXPECT_THAT(next.front().indices, ElementsAre(order[14], order[17], order[20], order[23]));
}

TEST(DataLoader, evaluates_exactly_the_given_samples) {
  DataLoader loader(sample_dataset(10), std::vector<std::int64_t>{9, 0, 4}, {.batch_size = 2});
  EXPECT_EQ(loader.num_batches(), 2);
  const auto batches = epoch_of(loader, 0);
  ASSERT_EQ(batches.size(), 2U);
  EXPECT_THAT(batches[0].indices, ElementsAre(9, 0));
  EXPECT_THAT(batches[1].indices, ElementsAre(4));
  DataLoader none(sample_dataset(10), std::vector<std::int64_t>{}, {.batch_size = 2});
  EXPECT_TRUE(epoch_of(none, 0).empty());
}

TEST(DataLoader, an_epoch_given_up_in_the_middle_ends_cleanly) {
  DataLoader loader(sample_dataset(100), DistributedSampler(100, 1, 0),
                    {.batch_size = 2, .num_threads = 3, .prefetch = 4});
  for (int round = 0; round < 50; ++round) {
    auto running = loader.epoch(round);
    for (int taken = 0; taken < round % 5; ++taken) EXPECT_EQ(running.next()->data.size(0), 2);
  }
}

TEST(DataLoader, a_batch_stays_as_it_was_after_the_loader_is_gone) {
  torch::Tensor kept, copy;
  {
    DataLoader loader(sample_dataset(100), DistributedSampler(100, 1, 0), {.batch_size = 10});
    auto running = loader.epoch(0);
    kept = running.next()->data;
    copy = kept.clone();
    while (running.next()) {
    }
  }
  EXPECT_TRUE(kept.equal(copy));
}

TEST(DataLoader, a_sampler_for_another_dataset_is_refused) {
  const DistributedSampler sampler(11, 1, 0);
  EXPECT_THROW(DataLoader(sample_dataset(10), sampler, {.batch_size = 4}), Error);
  EXPECT_THROW(DataLoader(sample_dataset(10), std::vector<std::int64_t>{10}, {}), Error);
  EXPECT_THROW(DataLoader(sample_dataset(10), std::vector<std::int64_t>{-1}, {}), Error);
}

TEST(DataLoader, makes_batches_of_whatever_tensors_a_dataset_gives) {
  for (const int threads : {0, 2}) {
    DataLoader loader(std::make_shared<Sentences>(), std::vector<std::int64_t>{1, 3, 0, 5, 4},
                      {.batch_size = 2, .num_threads = threads});
    const auto batches = epoch_of(loader, 1);
    ASSERT_EQ(batches.size(), 3U);
    ASSERT_EQ(batches[0].tensors.size(), 3U);
    EXPECT_TRUE(batches[0].data.equal(torch::tensor({{1, 1, -1, -1}, {3, 3, 3, 3}}, torch::kLong)));
    EXPECT_TRUE(batches[0].target.equal(torch::tensor({2, 4}, torch::kLong)));
    EXPECT_TRUE(batches[0].tensors[2].equal(batches[0].data.eq(-1)));
    EXPECT_EQ(batches[1].data.sizes(), at::IntArrayRef({2, 6}));
    EXPECT_EQ(batches[2].data.sizes(), at::IntArrayRef({1, 5}));
  }
}

TEST(DataLoader, an_error_of_the_dataset_is_thrown_by_next) {
  for (const int threads : {0, 1, 3}) {
    DataLoader loader(std::make_shared<Sentences>(), std::vector<std::int64_t>{1, 2},
                      {.batch_size = 1, .num_threads = threads});
    auto running = loader.epoch(0);
    try {
      while (running.next()) {
      }
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "sentence 2 has no words");
    }
  }
}

TEST(DataLoader, after_an_error_every_later_call_of_the_epoch_throws_it_again) {
  for (const int threads : {0, 1, 3}) {
    DataLoader loader(std::make_shared<Sentences>(), std::vector<std::int64_t>{2, 3},
                      {.batch_size = 1, .num_threads = threads});
    auto running = loader.epoch(0);
    for (int call = 0; call < 3; ++call) EXPECT_THROW(running.next(), std::runtime_error);
  }
}

TEST(DataLoader, a_batch_of_another_number_of_samples_is_refused) {
  struct Short : Sentences {
    std::vector<at::Tensor> batch(std::span<const std::int64_t> indices,
                                  std::int64_t) const override {
      return {torch::zeros({std::ssize(indices), 2}), torch::zeros({std::ssize(indices) - 1})};
    }
  };
  DataLoader loader(std::make_shared<Short>(), std::vector<std::int64_t>{0, 1, 3},
                    {.batch_size = 3, .num_threads = 0});
  auto running = loader.epoch(0);
  expect_error(ErrorCode::kInvalid, {"sentences gave a batch of 3 samples"},
               [&] { running.next(); });
}

TEST(TensorDataset, gives_rows_of_all_its_tensors) {
  const auto features = torch::arange(12).view({6, 2});
  const auto wanted = torch::arange(6) * 10;
  DataLoader loader(std::make_shared<TensorDataset>("table", std::vector{features, wanted}),
                    DistributedSampler(6, 2, 1, {.shuffle = false}), {.batch_size = 3});
  const auto batches = epoch_of(loader, 0);
  ASSERT_EQ(batches.size(), 1U);
  EXPECT_TRUE(batches[0].data.equal(torch::tensor({{2, 3}, {6, 7}, {10, 11}}, torch::kLong)));
  EXPECT_TRUE(batches[0].target.equal(torch::tensor({10, 30, 50}, torch::kLong)));
  expect_error(ErrorCode::kInvalid, {"dataset table: tensors of 6 and of 5 samples"}, [&] {
    TensorDataset("table", {features, wanted.narrow(0, 0, 5)});
  });
  expect_error(ErrorCode::kInvalid, {"dataset table: no tensors"},
               [&] { TensorDataset("table", {}); });
  expect_error(ErrorCode::kInvalid, {"dataset table: a tensor has no dimension"},
               [&] { TensorDataset("table", {torch::zeros({})}); });
}

TEST(DataLoader, options_out_of_range_are_refused) {
  const auto refused = [&](const DataLoaderOptions& options) {
    EXPECT_THROW(DataLoader(sample_dataset(10), DistributedSampler(10, 1, 0), options), Error);
  };
  refused({.batch_size = 0});
  refused({.num_threads = -1});
  refused({.prefetch = 0});
  EXPECT_THROW(sample_dataset(4, {.mean = {0.5F}}), Error);
}

TEST(DataLoader, a_device_that_cannot_be_used_is_refused_before_the_first_batch) {
  try {
    DataLoader(sample_dataset(10), DistributedSampler(10, 1, 0),
               {.device = c10::Device(c10::kCUDA, 99)});
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("data loader: device cuda:99: "));
  }
}

}  // namespace
}  // namespace paceline::data
