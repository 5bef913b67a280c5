#include "paceline/training/data/torch_sampler.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include <torch/serialize/archive.h>

#include "paceline/engine/core/check.h"

namespace paceline::data {

struct TorchSampler::Position {
  std::optional<DistributedSampler> sampler;  // made anew for another size
  std::vector<std::int64_t> indices;          // of this rank, from where the pass began
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
