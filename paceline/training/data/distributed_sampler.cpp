#include "paceline/training/data/distributed_sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <list>
#include <numeric>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/ATen.h>
#include <torch/serialize/archive.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/data/batch_source.h"

namespace paceline::data {

namespace {

constexpr std::int64_t kMaxWeights = 1 << 24;  // at::multinomial's limit

// Returns the order of the whole epoch. The generator, and therefore the permutation, is the same
// as with torch.Generator().manual_seed(seed) in Python.
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
  check(options.shuffle, "sampler: weights require `shuffle`");
  check(std::ssize(weights) == num_samples, "sampler: {} weights for {} samples", weights.size(),
        num_samples);
  check(num_samples < kMaxWeights, "sampler: weights for {} samples; LibTorch takes up to {}",
        num_samples, kMaxWeights);
  double sum = 0;
  for (const double weight : weights) {
    check(weight >= 0 && std::isfinite(weight),
          "sampler: a weight is {}, but must be finite and not negative", weight);
    sum += weight;
  }
  check(sum > 0 && std::isfinite(sum),
        "sampler: the sum of the weights is {}, but must be finite and above 0", sum);
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
        "sampler: epoch {} after {} of {} samples is not a position", epoch, consumed,
        num_samples_);
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
    // Beyond the end, the padding repeats the samples at the beginning of the epoch.
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

namespace {

using Indices = std::vector<std::int64_t>;

struct Group {
  Indices all;      // the group's samples so far
  Indices waiting;  // the group's samples that are not in a batch yet
};

}  // namespace

Groups groups_by_bounds(std::span<const std::int64_t> values, const Indices& bounds) {
  check(std::ranges::is_sorted(bounds), "the bounds of groups are not in ascending order");
  Indices groups;
  groups.reserve(values.size());
  for (const std::int64_t value : values)
    groups.push_back(std::ranges::upper_bound(bounds, value) - bounds.begin());
  return std::make_shared<const Indices>(std::move(groups));
}

Indices grouped_order(std::span<const std::int64_t> order, const Indices& groups,
                      std::int64_t batch_size) {
  const auto size = static_cast<std::size_t>(batch_size);
  const std::size_t total = order.size() / size * size;
  Indices batches;
  batches.reserve(total);
  // A group moves to the end of the list when it fills a batch. At the end of the epoch, this order
  // decides between groups with equally many waiting samples.
  std::list<Group> waiting;
  std::unordered_map<std::int64_t, std::list<Group>::iterator> places;
  for (const std::int64_t sample : order) {
    const std::int64_t id = groups[static_cast<std::size_t>(sample)];
    if (!places.contains(id)) places[id] = waiting.emplace(waiting.end());
    Group& group = *places[id];
    group.all.push_back(sample);
    group.waiting.push_back(sample);
    if (group.waiting.size() < size) continue;
    batches.insert(batches.end(), group.waiting.begin(), group.waiting.end());
    group.waiting.clear();
    waiting.splice(waiting.end(), waiting, places[id]);
  }
  waiting.sort([](const Group& a, const Group& b) { return a.waiting.size() > b.waiting.size(); });
  for (auto group = waiting.begin(); batches.size() < total; ++group) {
    batches.insert(batches.end(), group->waiting.begin(), group->waiting.end());
    for (std::size_t i = 0; i < size - group->waiting.size(); ++i)
      batches.push_back(group->all[i % group->all.size()]);
  }
  return batches;
}

struct TorchSampler::Position {
  std::optional<DistributedSampler> sampler;  // replaced when the size of the data set changes
  std::vector<std::int64_t> indices;  // indices of this rank, from the beginning of the pass
  std::size_t num_taken = 0;

  void begin() {
    indices = sampler->indices();
    num_taken = 0;
  }
};

namespace {

constexpr std::array<const char*, 5> kKeys = {"num_samples", "seed", "shuffle", "epoch",
                                              "consumed"};

std::int64_t read(torch::serialize::InputArchive& archive, const std::string& key) {
  at::Tensor value;
  archive.read(key, value, /*is_buffer=*/true);
  return value.item<std::int64_t>();
}

}  // namespace

TorchSampler::TorchSampler(const DistributedSampler& sampler)
    : position_(std::make_shared<Position>()) {
  position_->sampler.emplace(sampler);
  position_->begin();
}

void TorchSampler::set_epoch(std::int64_t epoch, std::int64_t consumed) {
  position_->sampler->set_epoch(epoch, consumed);
  position_->begin();
}

std::int64_t TorchSampler::epoch() const { return position_->sampler->epoch(); }

std::int64_t TorchSampler::consumed() const {
  const DistributedSampler& sampler = *position_->sampler;
  const auto taken = static_cast<std::int64_t>(position_->num_taken) * sampler.num_replicas();
  return std::min(sampler.consumed() + taken, sampler.num_samples());
}

void TorchSampler::reset(NewSize new_size) {
  DistributedSampler& sampler = *position_->sampler;
  const std::int64_t epoch = sampler.epoch();
  if (new_size && static_cast<std::int64_t>(*new_size) != sampler.num_samples()) {
    const DistributedSampler other(static_cast<std::int64_t>(*new_size), sampler.num_replicas(),
                                   sampler.rank(), sampler.options());
    position_->sampler.emplace(other);
    return set_epoch(epoch);
  }
  if (position_->num_taken > 0) set_epoch(epoch);
}

TorchSampler::Request TorchSampler::next(std::size_t batch_size) {
  const auto& indices = position_->indices;
  const std::size_t count = std::min(batch_size, indices.size() - position_->num_taken);
  if (count == 0) return {};
  const auto begin = indices.begin() + static_cast<std::ptrdiff_t>(position_->num_taken);
  position_->num_taken += count;
  return std::vector<std::size_t>(begin, begin + static_cast<std::ptrdiff_t>(count));
}

void TorchSampler::save(torch::serialize::OutputArchive& archive) const {
  const DistributedSampler& sampler = *position_->sampler;
  const std::array<std::int64_t, kKeys.size()> values = {
      sampler.num_samples(), static_cast<std::int64_t>(sampler.options().seed),
      sampler.options().shuffle ? 1 : 0, sampler.epoch(), consumed()};
  for (std::size_t i = 0; i < kKeys.size(); ++i)
    archive.write(kKeys[i], at::scalar_tensor(values[i], at::kLong), /*is_buffer=*/true);
}

void TorchSampler::load(torch::serialize::InputArchive& archive) {
  std::array<std::int64_t, kKeys.size()> values = {};
  for (std::size_t i = 0; i < kKeys.size(); ++i) values[i] = read(archive, kKeys[i]);
  const DistributedSampler& sampler = *position_->sampler;
  const auto seed = static_cast<std::int64_t>(sampler.options().seed);
  check(values[0] == sampler.num_samples() && values[1] == seed &&
            (values[2] != 0) == sampler.options().shuffle,
        "rank {}: the saved sampler has {} samples, seed {} and shuffle {}; this one has {}, {} "
        "and {}",
        sampler.rank(), values[0], values[1], values[2] != 0, sampler.num_samples(), seed,
        sampler.options().shuffle);
  set_epoch(values[3], values[4]);
}

}  // namespace paceline::data
