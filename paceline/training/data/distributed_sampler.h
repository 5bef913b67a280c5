#pragma once

// Decides which samples a rank sees, and in which order: samplers, and groups of similar samples.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/data/samplers/base.h>

#include "paceline/engine/collectives/group/process_group.h"

namespace paceline::data {

struct SamplerOptions {
  bool shuffle = true;
  std::uint64_t seed = 0;
  // If the number of ranks does not divide the samples, drops the last ones instead of repeating
  // the first ones.
  bool drop_last = false;
  // A weight for each sample, 0 or above; the same on every rank. An epoch then draws as many
  // samples as the data set has, with replacement, as PyTorch's WeightedRandomSampler does when it
  // is seeded with seed + epoch.
  std::shared_ptr<const std::vector<double>> weights = nullptr;
};

// PyTorch's DistributedSampler, index for index: a permutation seeded with seed + epoch, padded or
// cut to a multiple of the number of ranks, and dealt out in turn (rank, rank + ranks, ...).
//
// Its position counts the samples that all ranks together have consumed in this epoch. The order
// does not depend on the number of ranks (only the padding does), so any number of ranks can
// continue an epoch at the exact sample.
class DistributedSampler {
 public:
  // Error(kInvalid) when num_samples is below 1 or rank not in [0, num_replicas). If weights are
  // given, also when shuffle is false, when their number is not num_samples or is 2^24 or more,
  // when one is negative or not finite, or when their sum is 0 or not finite.
  DistributedSampler(std::int64_t num_samples, int num_replicas, int rank,
                     const SamplerOptions& options = {});
  // For the ranks of a group.
  DistributedSampler(std::int64_t num_samples, GroupRef group, const SamplerOptions& options = {})
      : DistributedSampler(num_samples, group->world_size(), group->rank(), options) {}

  // Begins `epoch` (0 or more) at its first sample, or after `consumed` samples of all ranks
  // together, not counting padding.
  void set_epoch(std::int64_t epoch, std::int64_t consumed = 0);
  std::int64_t epoch() const { return epoch_; }
  std::int64_t consumed() const { return consumed_; }
  std::int64_t num_samples() const { return num_samples_; }
  int num_replicas() const { return num_replicas_; }
  int rank() const { return rank_; }
  const SamplerOptions& options() const { return options_; }

  // Returns all samples of this epoch in the order in which the ranks together take them, without
  // padding.
  std::vector<std::int64_t> order() const;
  // The number of samples that this rank has left in this epoch; the same on every rank.
  std::int64_t size() const;
  // This rank's samples from the current position to the end of the epoch.
  std::vector<std::int64_t> indices() const;

 public:  // internal
  // Common mistakes: PyTorch's sampler takes the data set and finds the ranks itself.
  template <class Samples>
  explicit DistributedSampler(const Samples& /*samples*/) : DistributedSampler(1, 1, 0) {
    static_assert(sizeof(Samples) == 0,
                  "the group is missing: write DistributedSampler sampler(dataset->size(), group)");
  }
  template <class Data>
    requires(!std::is_convertible_v<const Data&, std::int64_t>)
  DistributedSampler(const Data& /*dataset*/, GroupRef group, const SamplerOptions& options = {})
      : DistributedSampler(1, group, options) {
    static_assert(sizeof(Data) == 0,
                  "a sampler takes the number of samples: write DistributedSampler "
                  "sampler(dataset->size(), group)");
  }

 private:
  const std::int64_t num_samples_;
  const int num_replicas_;
  const int rank_;
  const SamplerOptions options_;
  std::int64_t epoch_ = 0;
  std::int64_t consumed_ = 0;
};

// Returns this rank's samples for an exact evaluation: over all ranks every sample exactly once, in
// order, without padding; the numbers of samples of two ranks differ by at most one.
std::vector<std::int64_t> evaluation_indices(std::int64_t num_samples, int num_replicas, int rank);
inline std::vector<std::int64_t> evaluation_indices(std::int64_t num_samples, GroupRef group) {
  return evaluation_indices(num_samples, group->world_size(), group->rank());
}

// Batches of similar samples: of similar length, so that little padding is needed, or of one aspect
// ratio. Each sample of a data set has a group number; samples with the same number may share a
// batch. All loaders that use the groups share the vector.
//
//   const auto groups = data::groups_by_bounds(lengths, {16, 32, 64, 128});
//   data::DataLoader loader(dataset, sampler, {.batch_size = 32, .groups = groups});
//
// The algorithm is torchvision's GroupedBatchSampler, applied before the batches are dealt to
// ranks. So the batches are the same for any number of ranks, and any number of ranks can continue
// an epoch.
using Groups = std::shared_ptr<const std::vector<std::int64_t>>;

// Returns the group of each value: the number of `bounds` that are not above the value, as
// bisect.bisect_right does. Error(kInvalid) unless the bounds are in ascending order.
Groups groups_by_bounds(std::span<const std::int64_t> values,
                        const std::vector<std::int64_t>& bounds);

// DistributedSampler for LibTorch's own data loaders: a torch::data::samplers::Sampler with the
// same indices as DistributedSampler, and therefore as PyTorch's.
//
//   data::TorchSampler sampler({num_samples, group->world_size(), group->rank()});
//   auto loader = torch::data::make_data_loader(dataset, sampler, /*batch_size=*/64);
//   for (int epoch = 0; epoch < 10; ++epoch) {
//     sampler.set_epoch(epoch);   // another order in each epoch
//     for (auto& batch : *loader) ...
//   }
//
// Copies share one position: the loader takes a copy of the sampler, and set_epoch() must take
// effect in that copy.
//
// Thread safety: none; a loader calls the sampler from the thread that iterates.
class TorchSampler : public torch::data::samplers::Sampler<> {
  template <class Class, class Argument>
  static Argument argument_of(void (Class::*)(Argument));

 public:
  // LibTorch's optional types, which depend on its version.
  using NewSize = decltype(argument_of(&torch::data::samplers::Sampler<>::reset));
  using Request = decltype(std::declval<torch::data::samplers::Sampler<>&>().next(1));

  explicit TorchSampler(const DistributedSampler& sampler);

  // The position, as in DistributedSampler.
  void set_epoch(std::int64_t epoch, std::int64_t consumed = 0);
  std::int64_t epoch() const;
  // Samples that next() has returned on all ranks together. LibTorch's loader is ahead of the loop
  // by one batch, or by torch::data::DataLoaderOptions::max_jobs batches.
  std::int64_t consumed() const;

  // The loader calls this before each pass. Goes back to the first sample of the epoch, unless
  // set_epoch() or load() has set the position since the last next(). `new_size`: samples of the
  // whole data set.
  void reset(NewSize new_size = {}) override;
  // Returns this rank's next indices, at most `batch_size`; nullopt at the end of the epoch.
  Request next(std::size_t batch_size) override;

  // Save and load the epoch and the position; any number of ranks can load the state that any rank
  // has saved. Error(kInvalid) when the size of the data set, the seed or `shuffle` differs.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  struct Position;
  std::shared_ptr<Position> position_;  // shared by the copies of this sampler
};

}  // namespace paceline::data
