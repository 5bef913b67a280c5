#pragma once

// DistributedSampler for LibTorch's own data loaders: a torch::data::samplers::Sampler whose
// indices are those of DistributedSampler, hence Python's.
//
//   data::TorchSampler sampler({num_samples, group->world_size(), group->rank()});
//   auto loader = torch::data::make_data_loader(dataset, sampler, /*batch_size=*/64);
//   for (int epoch = 0; epoch < 10; ++epoch) {
//     sampler.set_epoch(epoch);   // another order in each epoch
//     for (auto& batch : *loader) ...
//   }
//
// Copies share one position, because the loader takes a copy: set_epoch() reaches it there.
//
// Thread safety: none; a loader calls it from the thread that iterates.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include <torch/data/samplers/base.h>

#include "paceline/training/data/distributed_sampler.h"

namespace paceline::data {

class TorchSampler : public torch::data::samplers::Sampler<> {
  template <class Class, class Argument>
  static Argument argument_of(void (Class::*)(Argument));

 public:
  // LibTorch's optional types, which differ by version.
  using NewSize = decltype(argument_of(&torch::data::samplers::Sampler<>::reset));
  using Request = decltype(std::declval<torch::data::samplers::Sampler<>&>().next(1));

  explicit TorchSampler(const DistributedSampler& sampler);

  // As DistributedSampler's.
  void set_epoch(std::int64_t epoch, std::int64_t consumed = 0);
  std::int64_t epoch() const;
  // Of all ranks together, what next() has given out. A loader asks ahead: by one batch, or by
  // DataLoaderOptions::max_jobs.
  std::int64_t consumed() const;

  // The loader calls it before each pass. Goes back to the first sample of the epoch, unless
  // set_epoch() or load() has set the position since the last next(). A new size is that of the
  // data set, for all ranks together.
  void reset(NewSize new_size = {}) override;
  // This rank's next indices, at most `batch_size`; none at the end of the epoch.
  Request next(std::size_t batch_size) override;

  // The epoch and the position. Any number of ranks can load what any rank has saved:
  // Error(kInvalid) when the data set's size, the seed or the shuffling are others.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  struct Position;
  std::shared_ptr<Position> position_;  // owners: the copies of this sampler
};

}  // namespace paceline::data
