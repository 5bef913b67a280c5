#include <map>
#include <set>

#include <gmock/gmock.h>

#include "paceline/engine/core/error.h"
#include "paceline/training/data/batch_source.h"
#include "paceline/training/data/data_loader.h"
#include "paceline/training/data/distributed_sampler.h"

#include "tests/harness/expect_error.h"

namespace paceline::data {
namespace {

using ::testing::ElementsAre;
using Indices = std::vector<std::int64_t>;

const Indices kOrder = {1,  20, 16, 5, 10, 6,  21, 12, 9,  3,  8, 19,
                        22, 13, 14, 0, 2,  15, 11, 4,  17, 18, 7};
const Indices kGroups = {1, 1, 4, 3, 0, 0, 1, 4, 0, 2, 0, 2, 3, 4, 3, 3, 3, 4, 3, 1, 2, 0, 0};

class OwnIndices : public Dataset {
 public:
  explicit OwnIndices(std::int64_t size) : size_(size) {}
  std::string name() const override { return "numbers"; }
  std::int64_t size() const override { return size_; }
  std::vector<at::Tensor> batch(std::span<const std::int64_t> indices,
                                std::int64_t /*epoch*/) const override {
    return {at::tensor(at::IntArrayRef(indices.data(), indices.size()), at::kLong)};
  }

 private:
  const std::int64_t size_;
};

Groups groups_of_3(std::int64_t size) {
  Indices groups;
  for (std::int64_t i = 0; i < size; ++i) groups.push_back(i * 7 % 11 % 3);
  return std::make_shared<const Indices>(groups);
}

std::vector<Indices> batches_of(int ranks, int rank, std::int64_t consumed,
                                DataLoaderOptions options, std::int64_t size = 101) {
  options.groups = groups_of_3(size);
  options.num_threads = 0;
  DataLoader loader(std::make_shared<OwnIndices>(size),
                    DistributedSampler(size, ranks, rank, {.seed = 3}), options);
  auto running = loader.epoch(2, consumed);
  std::vector<Indices> batches;
  while (auto batch = running.next()) batches.push_back(batch->indices);
  if (consumed == 0 && options.global_batch_size == 0) {
    EXPECT_EQ(std::ssize(batches), loader.num_batches());
  }
  return batches;
}

// The batches of torchvision's GroupedBatchSampler for a sampler with this order.
TEST(GroupedOrder, batches_are_those_of_torchvision) {
  EXPECT_EQ(grouped_order(kOrder, kGroups, 1), kOrder);
  EXPECT_EQ(grouped_order(kOrder, kGroups, 3),
            (Indices{5, 10, 21, 16, 12, 3, 1, 6, 19, 20, 9, 11, 8, 22, 4, 13, 2, 17, 14, 15, 18}));
  EXPECT_EQ(grouped_order(kOrder, kGroups, 4),
            (Indices{5, 10, 21, 8, 16, 12, 3, 14, 1, 6, 19, 0, 13, 2, 17, 7, 20, 9, 11, 20}));
  EXPECT_EQ(grouped_order(kOrder, kGroups, 7),
            (Indices{16, 12, 3, 14, 15, 18, 16, 5, 10, 21, 8, 22, 4, 5, 1, 6, 19, 0, 1, 6, 19}));
  EXPECT_TRUE(grouped_order(kOrder, kGroups, 24).empty());
}

TEST(GroupedOrder, groups_are_cut_at_bounds_as_bisect_right_does) {
  EXPECT_THAT(*groups_by_bounds(Indices{0, 9, 10, 11, 20, 99}, {10, 20}),
              ElementsAre(0, 0, 1, 1, 2, 2));
  expect_error(ErrorCode::kInvalid, {"ascending"}, [] { groups_by_bounds(Indices{1}, {20, 10}); });
}

TEST(GroupedOrder, a_loaders_batches_have_samples_of_one_group_at_any_number_of_ranks) {
  const auto groups = groups_of_3(101);
  const auto alone = batches_of(1, 0, 0, {.batch_size = 4});
  ASSERT_EQ(alone.size(), 25U);
  for (const auto& batch : alone) {
    std::set<std::int64_t> ids;
    for (const std::int64_t sample : batch) ids.insert((*groups)[static_cast<std::size_t>(sample)]);
    EXPECT_EQ(ids.size(), 1U);
    EXPECT_EQ(batch.size(), 4U);
  }
  for (const int ranks : {2, 3, 4}) {
    for (int rank = 0; rank < ranks; ++rank) {
      const auto own = batches_of(ranks, rank, 0, {.batch_size = 4});
      ASSERT_EQ(std::ssize(own), (25 + ranks - 1) / ranks);
      for (std::size_t step = 0; step < own.size(); ++step) {
        const auto number = step * static_cast<std::size_t>(ranks) + static_cast<std::size_t>(rank);
        EXPECT_EQ(own[step], alone[number % 25]) << "beyond the last one, from the first on";
      }
    }
    EXPECT_EQ(std::ssize(batches_of(ranks, 0, 0, {.batch_size = 4, .drop_last = true})),
              25 / ranks);
  }
}

TEST(GroupedOrder, an_epoch_saved_by_two_ranks_is_continued_by_any_number) {
  const auto alone = batches_of(1, 0, 0, {.batch_size = 4});
  for (const int ranks : {1, 2, 4, 8}) {
    for (int rank = 0; rank < ranks; ++rank) {
      const auto rest = batches_of(ranks, rank, /*consumed=*/3 * 2 * 4, {.batch_size = 4});
      EXPECT_EQ(rest[0], alone[6 + static_cast<std::size_t>(rank)]) << rank << " of " << ranks;
    }
    EXPECT_TRUE(batches_of(ranks, 0, 100, {.batch_size = 4}).empty());
  }
  expect_error(ErrorCode::kInvalid, {"24 samples", "not a whole number of batches of 5"},
               [] { batches_of(2, 0, 24, {.batch_size = 5}); });
}

TEST(GroupedOrder, a_global_batch_is_of_one_group) {
  const auto groups = groups_of_3(101);
  std::vector<std::set<std::int64_t>> ids(12);
  std::size_t count = 0;
  for (int rank = 0; rank < 3; ++rank) {
    const auto own = batches_of(3, rank, 0, {.global_batch_size = 8});
    ASSERT_EQ(own.size(), 12U);
    for (std::size_t step = 0; step < 12; ++step) {
      for (const std::int64_t sample : own[step])
        ids[step].insert((*groups)[static_cast<std::size_t>(sample)]);
      count += own[step].size();
    }
  }
  EXPECT_EQ(count, 96U);
  for (const auto& step : ids) EXPECT_EQ(step.size(), 1U);
}

TEST(GroupedOrder, groups_that_do_not_fit_are_refused) {
  const auto dataset = std::make_shared<OwnIndices>(10);
  const auto load = [&](const DataLoaderOptions& options) {
    const DataLoader loader(dataset, DistributedSampler(10, 1, 0), options);
  };
  expect_error(ErrorCode::kInvalid, {"groups of 9 samples, numbers has 10"},
               [&] { load({.groups = groups_of_3(9)}); });
  expect_error(ErrorCode::kInvalid, {"10 samples, which fill no batch of 11"},
               [&] { load({.batch_size = 11, .groups = groups_of_3(10)}); });
  expect_error(ErrorCode::kInvalid, {"groups require a sampler"}, [&] {
    const DataLoader loader(dataset, Indices{1, 2}, {.groups = groups_of_3(10)});
  });
}

}  // namespace
}  // namespace paceline::data
