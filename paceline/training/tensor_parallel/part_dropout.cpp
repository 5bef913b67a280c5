#include "paceline/training/tensor_parallel/part_dropout.h"

#include <cstdint>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/tensor/random.h"

namespace paceline {
namespace {

// SplitMix64: neighbouring numbers become unlike ones.
std::uint64_t mixed(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

}  // namespace

at::Tensor part_dropout(const ProcessGroup& group, const at::Tensor& input, double p,
                        bool is_training) {
  if (group.world_size() == 1) return paceline::dropout(input, p, is_training);
  check(p >= 0 && p < 1, "dropout: the probability {} is not in [0, 1)", p);
  if (!is_training || p == 0) return input;
  const at::Tensor drawn = at::empty({}, at::kLong).random_(rank_generator());
  const auto shared = static_cast<std::uint64_t>(drawn.item<std::int64_t>());
  const auto own = mixed(shared ^ mixed(static_cast<std::uint64_t>(group.rank())));
  const at::Tensor kept =
      at::empty_like(input.detach()).bernoulli_(1 - p, at::detail::createCPUGenerator(own));
  return input * kept.div_(1 - p);
}

}  // namespace paceline
