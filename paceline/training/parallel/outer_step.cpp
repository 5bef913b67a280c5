#include "paceline/training/parallel/outer_step.h"

#include <ATen/ATen.h>

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

at::Tensor encode_update(const at::Tensor& values, WirePrecision wire) {
  if (wire == WirePrecision::kFloat32) return values;
  return wire == WirePrecision::kBfloat16 ? values.to(at::kBFloat16) : to_int8(values);
}

at::Tensor decode_update(const at::Tensor& payload, WirePrecision wire) {
  if (wire == WirePrecision::kFloat32) return payload;
  return wire == WirePrecision::kBfloat16 ? payload.to(at::kFloat) : from_int8(payload);
}

void take_outer_step(const at::Tensor& anchor, const at::Tensor& momentum, const at::Tensor& mean,
                     double lr, double momentum_factor) {
  momentum.mul_(momentum_factor).add_(mean);
  anchor.sub_(mean, lr).sub_(momentum, lr * momentum_factor);
}

}  // namespace paceline::detail
