#include <sstream>
#include <vector>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/engine/core/error.h"
#include "paceline/training/data/distributed_sampler.h"

namespace paceline::data {
namespace {

struct Numbers : torch::data::datasets::Dataset<Numbers> {
  explicit Numbers(std::int64_t count) : count(count) {}
  torch::data::Example<> get(std::size_t index) override {
    const auto value = at::full({1}, static_cast<double>(index));
    return {value, value};
  }
  torch::optional<std::size_t> size() const override { return static_cast<std::size_t>(count); }
  std::int64_t count;
};

template <class Loader>
std::vector<std::int64_t> pass_of(Loader& loader) {
  std::vector<std::int64_t> seen;
  for (auto& batch : loader) {
    for (std::int64_t i = 0; i < batch.data.size(0); ++i)
      seen.push_back(batch.data[i].template item<std::int64_t>());
  }
  return seen;
}

std::vector<std::int64_t> rest_of(TorchSampler& sampler, std::size_t batch_size = 3) {
  std::vector<std::int64_t> seen;
  while (const auto batch = sampler.next(batch_size))
    seen.insert(seen.end(), batch->begin(), batch->end());
  return seen;
}

TEST(TorchSampler, libtorchs_loader_gets_the_distributed_samplers_indices_in_every_epoch) {
  for (const std::size_t workers : {0U, 2U}) {
    for (const int rank : {0, 1, 2}) {
      DistributedSampler reference(20, 3, rank, {.seed = 5});
      TorchSampler sampler(reference);
      auto loader = torch::data::make_data_loader(
          Numbers(20).map(torch::data::transforms::Stack<>()), sampler,
          torch::data::DataLoaderOptions(4).workers(workers).enforce_ordering(true));
      for (int epoch = 0; epoch < 3; ++epoch) {
        sampler.set_epoch(epoch);  // also changes the loader's copy
        reference.set_epoch(epoch);
        EXPECT_EQ(pass_of(*loader), reference.indices()) << epoch << ", rank " << rank;
      }
      EXPECT_EQ(pass_of(*loader), reference.indices()) << "the same epoch once more";
    }
  }
}

TEST(TorchSampler, batches_end_with_what_is_left) {
  TorchSampler sampler({10, 2, 0, {.shuffle = false}});
  EXPECT_EQ(*sampler.next(3), (std::vector<std::size_t>{0, 2, 4}));
  EXPECT_EQ(sampler.consumed(), 6);
  EXPECT_EQ(*sampler.next(3), (std::vector<std::size_t>{6, 8}));
  EXPECT_FALSE(sampler.next(3));
  sampler.reset();
  EXPECT_EQ(*sampler.next(1), (std::vector<std::size_t>{0}));
}

TEST(TorchSampler, a_saved_position_continues_at_the_sample_with_any_number_of_ranks) {
  TorchSampler first({21, 3, 1, {.seed = 9}});
  first.set_epoch(4);
  first.next(4);
  std::stringstream stream;
  torch::serialize::OutputArchive out;
  first.save(out);
  out.save_to(stream);

  for (const int ranks : {1, 2, 3}) {
    TorchSampler later({21, ranks, 0, {.seed = 9}});
    torch::serialize::InputArchive in;
    std::stringstream copy(stream.str());
    in.load_from(copy);
    later.load(in);
    later.reset();  // as a loader does
    EXPECT_EQ(later.epoch(), 4);
    EXPECT_EQ(later.consumed(), 12);
    DistributedSampler reference(21, ranks, 0, {.seed = 9});
    reference.set_epoch(4, 12);
    EXPECT_EQ(rest_of(later), reference.indices());
    later.reset();
    reference.set_epoch(4);
    EXPECT_EQ(rest_of(later), reference.indices()) << "the next pass is a whole one";
  }
}

TEST(TorchSampler, what_was_saved_of_other_data_is_refused) {
  TorchSampler saved({21, 3, 1, {.seed = 9}});
  torch::serialize::OutputArchive out;
  saved.save(out);
  std::stringstream stream;
  out.save_to(stream);
  for (const auto& other :
       {DistributedSampler(22, 3, 1, {.seed = 9}), DistributedSampler(21, 3, 1, {.seed = 8}),
        DistributedSampler(21, 3, 1, {.shuffle = false, .seed = 9})}) {
    TorchSampler sampler(other);
    torch::serialize::InputArchive in;
    std::stringstream copy(stream.str());
    in.load_from(copy);
    EXPECT_THROW(sampler.load(in), Error);
  }
}

TEST(TorchSampler, a_reset_may_bring_a_new_size) {
  TorchSampler sampler({10, 2, 1, {.shuffle = false}});
  sampler.reset(4);
  EXPECT_EQ(rest_of(sampler), (std::vector<std::int64_t>{1, 3}));
  sampler.reset(1);  // fewer samples than ranks: both ranks get the same one
  EXPECT_EQ(rest_of(sampler), (std::vector<std::int64_t>{0}));
  EXPECT_THROW(sampler.reset(0), Error);
}

}  // namespace
}  // namespace paceline::data
