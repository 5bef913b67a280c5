#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <set>

#include <gmock/gmock.h>

#include "paceline/engine/core/error.h"
#include "paceline/training/data/distributed_sampler.h"

namespace paceline::data {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Indices = std::vector<std::int64_t>;

struct Reference {
  std::int64_t num_samples;
  int num_replicas, rank;
  std::uint64_t seed;
  std::int64_t epoch;
  bool shuffle, drop_last;
  std::size_t count;
  std::uint64_t digest;
  Indices first;
};

const std::vector<Reference>& references() {
  static const std::vector<Reference> table = {
#include "tests/training/data/sampler_reference.inc"
  };
  return table;
}

std::uint64_t digest_of(const Indices& indices) {
  std::uint64_t value = 0xcbf29ce484222325;
  for (const auto index : indices) {
    value = (value ^ static_cast<std::uint64_t>(index)) * 0x100000001b3;
  }
  return value;
}

TEST(Sampler, indices_are_those_of_python_bit_for_bit) {
  ASSERT_GT(references().size(), 500U);
  for (const auto& r : references()) {
    SCOPED_TRACE(::testing::Message()
                 << r.num_samples << " samples, rank " << r.rank << " of " << r.num_replicas
                 << ", seed " << r.seed << ", epoch " << r.epoch << ", shuffle " << r.shuffle
                 << ", drop_last " << r.drop_last);
    DistributedSampler sampler(r.num_samples, r.num_replicas, r.rank,
                               {.shuffle = r.shuffle, .seed = r.seed, .drop_last = r.drop_last});
    sampler.set_epoch(r.epoch);
    const auto indices = sampler.indices();
    EXPECT_EQ(sampler.size(), static_cast<std::int64_t>(indices.size()));
    ASSERT_EQ(indices.size(), r.count);
    EXPECT_TRUE(std::equal(r.first.begin(), r.first.end(), indices.begin()));
    EXPECT_EQ(digest_of(indices), r.digest);
  }
}

// The order in which all ranks together take samples: one sample of each rank in turn.
Indices interleaved(std::int64_t num_samples, int replicas, std::int64_t consumed, bool drop_last) {
  std::vector<Indices> shares;
  for (int rank = 0; rank < replicas; ++rank) {
    DistributedSampler sampler(num_samples, replicas, rank, {.seed = 7, .drop_last = drop_last});
    sampler.set_epoch(2, consumed);
    shares.push_back(sampler.indices());
  }
  Indices all;
  for (std::size_t i = 0; i < shares[0].size(); ++i) {
    for (const auto& share : shares) all.push_back(share.at(i));
  }
  return all;
}

TEST(Sampler, resumes_at_the_exact_sample_with_the_same_ranks) {
  for (const int replicas : {1, 2, 3, 4, 5, 8}) {
    for (const bool drop_last : {false, true}) {
      const auto whole = interleaved(101, replicas, 0, drop_last);
      for (std::int64_t taken = 0; taken <= static_cast<std::int64_t>(whole.size());
           taken += replicas) {
        const auto rest = interleaved(101, replicas, taken, drop_last);
        EXPECT_EQ(rest, Indices(whole.begin() + taken, whole.end()))
            << replicas << " replicas, " << taken << " taken";
      }
    }
  }
}

TEST(Sampler, resumes_at_the_exact_sample_with_another_number_of_ranks) {
  const auto whole = interleaved(100, 1, 0, false);
  for (const int before : {1, 2, 4, 5}) {
    for (const int after : {1, 2, 3, 4, 5, 8}) {
      const std::int64_t taken = 7 * before;
      auto job = interleaved(100, before, 0, false);
      job.resize(static_cast<std::size_t>(taken));
      const auto rest = interleaved(100, after, taken, false);
      job.insert(job.end(), rest.begin(), rest.end());
      ASSERT_GE(job.size(), whole.size());
      ASSERT_LT(job.size(), whole.size() + static_cast<std::size_t>(after));
      EXPECT_TRUE(std::equal(whole.begin(), whole.end(), job.begin())) << before << " to " << after;
    }
  }
}

TEST(Sampler, evaluation_covers_every_sample_exactly_once) {
  for (const int replicas : {1, 2, 3, 4, 5, 8}) {
    for (const std::int64_t samples : {1, 7, 8, 9, 100}) {
      Indices all;
      for (int rank = 0; rank < replicas; ++rank) {
        for (const auto index : evaluation_indices(samples, replicas, rank)) {
          EXPECT_EQ(index % replicas, rank);
          all.push_back(index);
        }
      }
      std::ranges::sort(all);
      Indices expected(static_cast<std::size_t>(samples));
      std::iota(expected.begin(), expected.end(), 0);
      EXPECT_EQ(all, expected);
    }
  }
}

TEST(Sampler, fewer_samples_than_ranks_pads_by_repetition_or_drops_all) {
  EXPECT_THAT(DistributedSampler(2, 8, 7, {.shuffle = false}).indices(), ElementsAre(1));
  EXPECT_THAT(DistributedSampler(2, 8, 7, {.drop_last = true}).indices(), IsEmpty());
}

TEST(Sampler, a_rank_outside_the_replicas_or_a_position_outside_the_epoch_is_refused) {
  for (const int rank : {-1, 2, 3}) {
    EXPECT_THROW(DistributedSampler(4, 2, rank), Error);
    EXPECT_THROW(evaluation_indices(4, 2, rank), Error);
  }
  EXPECT_THROW(DistributedSampler(4, 0, 0), Error);
  EXPECT_THROW(DistributedSampler(0, 1, 0), Error);
  DistributedSampler sampler(4, 1, 0);
  EXPECT_THROW(sampler.set_epoch(-1), Error);
  EXPECT_THROW(sampler.set_epoch(0, -4), Error);
  EXPECT_THROW(sampler.set_epoch(0, 6), Error);
}

SamplerOptions weighted(std::vector<double> weights, std::uint64_t seed = 0) {
  return {.seed = seed, .weights = std::make_shared<const std::vector<double>>(std::move(weights))};
}

// list(WeightedRandomSampler(weights, 8, True, generator=torch.Generator().manual_seed(seed)))
TEST(WeightedSampler, indices_are_those_of_pythons) {
  const std::vector<double> weights = {0.5, 0, 2, 1, 4, 0.25, 1, 1};
  DistributedSampler sampler(8, 1, 0, weighted(weights));
  EXPECT_THAT(sampler.indices(), ElementsAre(7, 4, 4, 7, 4, 5, 2, 3));
  sampler.set_epoch(7);
  EXPECT_THAT(sampler.indices(), ElementsAre(3, 3, 6, 4, 7, 6, 3, 4));
}

TEST(WeightedSampler, samples_come_as_often_as_their_weights_say_on_all_ranks_together) {
  std::vector<double> weights(6000, 0);
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<double>(i % 3);
  std::array<int, 3> seen{};
  Indices together(6000);
  for (int rank = 0; rank < 3; ++rank) {
    const auto mine = DistributedSampler(6000, 3, rank, weighted(weights)).indices();
    ASSERT_EQ(mine.size(), 2000U);
    for (std::size_t i = 0; i < mine.size(); ++i) {
      ++seen[static_cast<std::size_t>(mine[i] % 3)];
      together[3 * i + static_cast<std::size_t>(rank)] = mine[i];
    }
  }
  EXPECT_EQ(seen[0], 0);
  EXPECT_NEAR(seen[1], 2000, 200);
  EXPECT_EQ(together, DistributedSampler(6000, 1, 0, weighted(weights)).indices());
}

TEST(WeightedSampler, weights_that_do_not_fit_are_refused) {
  const auto refused = [](const SamplerOptions& options) {
    EXPECT_THROW(DistributedSampler(3, 1, 0, options), Error);
  };
  refused(weighted({1, 1}));
  refused(weighted({1, -1, 1}));
  refused(weighted({0, 0, 0}));
  refused(weighted({1, NAN, 1}));
  refused(weighted({1, INFINITY, 1}));
  SamplerOptions in_order = weighted({1, 1, 1});
  in_order.shuffle = false;
  refused(in_order);
}

}  // namespace
}  // namespace paceline::data
