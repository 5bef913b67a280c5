#include "paceline/training/tensor_parallel/require_parts.h"

#include <fmt/ranges.h>

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/models/divided_layer.h"
#include "paceline/training/tensor/tensor_marks.h"

namespace paceline::tensor_parallel {

void require_group(std::string_view layer, const GroupPtr& group) {
  check(group != nullptr && group->is_member(), "{}: this rank is not a member of the group",
        layer);
}

models::Division division_among(std::string_view layer, const ProcessGroup& group, std::int64_t dim,
                                std::int64_t features, const models::InnerFeatures& inner) {
  models::Division division{.dim = dim, .parts = group.world_size(), .part = group.rank()};
  std::int64_t sum = 0;
  for (const std::int64_t count : inner.counts) {
    check(count % division.parts == 0,
          "{}: {}: {} {} do not divide among {} ranks; choose a multiple of {}", group.self(),
          layer, count, inner.block, division.parts, division.parts);
    division.sections.push_back(count * inner.width);
    sum += count * inner.width;
  }
  if (!inner.counts.empty()) {
    check(sum == features, "{}: {}: {} of width {} are {} features, not {}", group.self(), layer,
          inner.block, inner.width, sum, features);
    return division;
  }
  check(features % division.parts == 0,
        "{}: {}: {} features do not divide among {} ranks; choose a multiple of {}", group.self(),
        layer, features, division.parts, division.parts);
  division.sections = {features};
  return division;
}

void note_parts(std::string_view layer, const models::Division& division,
                const std::vector<at::Tensor>& parameters) {
  if (division.parts == 1) return;
  note_model_share(parameters, {fmt::format("a {} that {} ranks divide", layer, division.parts),
                                /*is_divided=*/true});
}

void require_features(std::string_view layer, const ProcessGroup& group, const at::Tensor& input,
                      std::int64_t features) {
  check(input.defined() && input.dim() > 0 && input.size(-1) == features,
        "{}: {}: the input is [{}]; its last dimension must have {} features", group.self(), layer,
        input.defined() ? fmt::format("{}", fmt::join(input.sizes(), ", ")) : "undefined",
        features);
}

}  // namespace paceline::tensor_parallel
