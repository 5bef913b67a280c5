#include "paceline/training/parallel/outer_step.h"

#include <fmt/ranges.h>

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"

namespace paceline::detail {

namespace {

at::Tensor to_int8(const at::Tensor& values) {
  const at::Tensor blocks = values.view({-1, kOuterBlock});
  const at::Tensor scales = blocks.abs().amax(1, true) / 127;
  const at::Tensor inverse = at::where(scales > 0, scales.reciprocal(), at::zeros_like(scales));
  const at::Tensor bytes = (blocks * inverse).round().clamp(-127, 127).to(at::kChar);
  return at::cat({bytes.view(at::kByte), scales.contiguous().view(at::kByte)}, 1);
}

at::Tensor from_int8(const at::Tensor& payload) {
  const at::Tensor bytes = payload.slice(1, 0, kOuterBlock).contiguous().view(at::kChar);
  const at::Tensor scales = payload.slice(1, kOuterBlock).contiguous().view(at::kFloat);
  return (bytes.to(at::kFloat) * scales).view({-1});
}

}  // namespace

at::Tensor encode_update(const at::Tensor& values, at::ScalarType wire) {
  return wire == at::kChar ? to_int8(values) : values.to(wire);
}

at::Tensor decode_update(const at::Tensor& payload) {
  const auto type = payload.scalar_type();
  const bool is_int8 = type == at::kByte && payload.dim() == 2 &&
                       payload.size(1) == kOuterBlock + static_cast<std::int64_t>(sizeof(float));
  check(is_int8 || type == at::kFloat || type == at::kBFloat16,
        "an update of {} of {} is not one that a learner sends", fmt::join(payload.sizes(), " x "),
        c10::toString(type));
  return is_int8 ? from_int8(payload) : payload.to(at::kFloat);
}

void take_outer_step(const at::Tensor& anchor, const at::Tensor& momentum, const at::Tensor& mean,
                     double lr, double momentum_factor) {
  momentum.mul_(momentum_factor).add_(mean);
  anchor.sub_(mean, lr).sub_(momentum, lr * momentum_factor);
}

}  // namespace paceline::detail
