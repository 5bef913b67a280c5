#pragma once

// Which samples a rank sees, and in which order.

#include <cstdint>
#include <memory>
#include <vector>

namespace paceline::data {

struct SamplerOptions {
  bool shuffle = true;
  std::uint64_t seed = 0;
  bool drop_last = false;  // drop the tail that does not divide by the ranks, instead of repeating
                           // the first samples
  // One for each sample, 0 or above; the same on every rank. An epoch then draws as many samples as
  // there are, with repetition, as PyTorch's WeightedRandomSampler seeded by seed + epoch.
  std::shared_ptr<const std::vector<double>> weights = nullptr;
};

// PyTorch's DistributedSampler, index for index: a permutation seeded by seed + epoch, padded or
// cut to a multiple of the number of ranks, dealt out in turn (rank, rank + ranks, ...).
//
// Its position counts samples that all ranks together have consumed in this epoch. The order does
// not depend on the number of ranks (only the padding does), so an epoch can be continued at the
// exact sample by any number of ranks.
class DistributedSampler {
 public:
  // Error(kInvalid) when num_samples is 0, rank is not in [0, num_replicas), or the weights are of
  // another number, negative, all 0 or not finite, or go with shuffle = false.
  DistributedSampler(std::int64_t num_samples, int num_replicas, int rank,
                     const SamplerOptions& options = {});

  // Begins `epoch` (0 or more) at its first sample, or after `consumed` samples of all ranks
  // together, padding left out.
  void set_epoch(std::int64_t epoch, std::int64_t consumed = 0);
  std::int64_t epoch() const { return epoch_; }
  std::int64_t consumed() const { return consumed_; }
  std::int64_t num_samples() const { return num_samples_; }
  int num_replicas() const { return num_replicas_; }
  int rank() const { return rank_; }
  const SamplerOptions& options() const { return options_; }

  // All samples of this epoch in the order in which all ranks together see them, without padding.
  std::vector<std::int64_t> order() const;
  // How many samples this rank still sees in this epoch; the same on every rank.
  std::int64_t size() const;
  // This rank's samples from the current position to the end of the epoch.
  std::vector<std::int64_t> indices() const;

 private:
  const std::int64_t num_samples_;
  const int num_replicas_;
  const int rank_;
  const SamplerOptions options_;
  std::int64_t epoch_ = 0;
  std::int64_t consumed_ = 0;
};

// For exact evaluation: every sample exactly once over all ranks, in order, no padding; ranks may
// differ by one sample.
std::vector<std::int64_t> evaluation_indices(std::int64_t num_samples, int num_replicas, int rank);

}  // namespace paceline::data
