#include "paceline/training/data/distributed_sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"

namespace paceline::data {
namespace {

constexpr std::int64_t kMaxWeights = 1 << 24;  // at::multinomial's limit

// The whole epoch's order. The generator, hence the permutation, is Python's
// torch.Generator().manual_seed(seed).
std::vector<std::int64_t> epoch_order(std::int64_t num_samples, const SamplerOptions& options,
                                      std::uint64_t seed) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(num_samples));
  if (!options.shuffle) {
    std::iota(order.begin(), order.end(), 0);
    return order;
  }
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  const at::Tensor drawn =
      options.weights ? at::multinomial(at::tensor(*options.weights, at::kDouble), num_samples,
                                        /*replacement=*/true, generator)
                      : at::randperm(num_samples, generator, at::kLong);
  std::copy_n(drawn.data_ptr<std::int64_t>(), num_samples, order.begin());
  return order;
}

void require_rank(std::int64_t num_samples, int num_replicas, int rank) {
  check(num_samples > 0, "a sampler needs at least one sample");
  check(num_replicas > 0 && rank >= 0 && rank < num_replicas, "sampler: rank {} is not in [0, {})",
        rank, num_replicas);
}

void require_weights(std::int64_t num_samples, const SamplerOptions& options) {
  if (!options.weights) return;
  const auto& weights = *options.weights;
  check(options.shuffle, "sampler: weights without shuffle");
  check(std::ssize(weights) == num_samples, "sampler: {} weights for {} samples", weights.size(),
        num_samples);
  check(num_samples < kMaxWeights, "sampler: weights for {} samples; LibTorch takes up to {}",
        num_samples, kMaxWeights);
  double sum = 0;
  for (const double weight : weights) {
    check(weight >= 0 && std::isfinite(weight), "sampler: a weight of {}", weight);
    sum += weight;
  }
  check(sum > 0 && std::isfinite(sum), "sampler: the sum of the weights is {}", sum);
}

}  // namespace

DistributedSampler::DistributedSampler(std::int64_t num_samples, int num_replicas, int rank,
                                       const SamplerOptions& options)
    : num_samples_(num_samples), num_replicas_(num_replicas), rank_(rank), options_(options) {
  require_rank(num_samples, num_replicas, rank);
  require_weights(num_samples, options);
}

void DistributedSampler::set_epoch(std::int64_t epoch, std::int64_t consumed) {
  check(epoch >= 0 && consumed >= 0 && consumed <= num_samples_ + num_replicas_,
        "sampler: epoch {} after {} of {} samples is no position", epoch, consumed, num_samples_);
  epoch_ = epoch;
  consumed_ = consumed;
}

std::int64_t DistributedSampler::size() const {
  const std::int64_t left = std::max<std::int64_t>(0, num_samples_ - consumed_);
  return options_.drop_last ? left / num_replicas_ : (left + num_replicas_ - 1) / num_replicas_;
}

std::vector<std::int64_t> DistributedSampler::order() const {
  return epoch_order(num_samples_, options_, options_.seed + static_cast<std::uint64_t>(epoch_));
}

std::vector<std::int64_t> DistributedSampler::indices() const {
  const auto order = this->order();
  std::vector<std::int64_t> mine;
  mine.reserve(static_cast<std::size_t>(size()));
  for (std::int64_t i = 0; i < size(); ++i) {
    // Beyond the end, the padding repeats the epoch's beginning.
    const std::int64_t position = consumed_ + i * num_replicas_ + rank_;
    mine.push_back(order[static_cast<std::size_t>(position % num_samples_)]);
  }
  return mine;
}

std::vector<std::int64_t> evaluation_indices(std::int64_t num_samples, int num_replicas, int rank) {
  require_rank(num_samples, num_replicas, rank);
  std::vector<std::int64_t> mine;
  for (std::int64_t i = rank; i < num_samples; i += num_replicas) mine.push_back(i);
  return mine;
}

}  // namespace paceline::data
