#include "paceline/training/models/division.h"

#include <numeric>

#include <ATen/ATen.h>

namespace paceline::models {
namespace {

void visit(const torch::nn::Module& module, const std::string& prefix,
           const ParameterVisitor& visitor) {
  const auto* const divided = dynamic_cast<const DividedLayer*>(&module);
  for (auto& parameter : module.named_parameters(/*recurse=*/false)) {
    visitor(prefix + parameter.key(), parameter.value(),
            divided == nullptr ? std::nullopt : divided->division_of(parameter.key()));
  }
  for (const auto& child : module.named_children())
    visit(*child.value(), prefix + child.key() + ".", visitor);
}

}  // namespace

std::vector<std::int64_t> Division::whole_sizes(at::IntArrayRef part_sizes) const {
  std::vector<std::int64_t> sizes = part_sizes.vec();
  sizes[static_cast<std::size_t>(dim)] =
      std::accumulate(sections.begin(), sections.end(), std::int64_t{0});
  return sizes;
}

at::Tensor Division::part_of(const at::Tensor& whole) const {
  std::vector<at::Tensor> pieces;
  std::int64_t begin = 0;
  for (const std::int64_t length : sections) {
    pieces.push_back(whole.narrow(dim, begin + part * (length / parts), length / parts));
    begin += length;
  }
  return at::cat(pieces, dim);
}

at::Tensor Division::joined(const std::vector<at::Tensor>& all_parts) const {
  std::vector<at::Tensor> pieces;
  std::int64_t begin = 0;
  for (const std::int64_t length : sections) {
    for (const at::Tensor& one : all_parts)
      pieces.push_back(one.narrow(dim, begin, length / parts));
    begin += length / parts;
  }
  return at::cat(pieces, dim);
}

void visit_parameters(const torch::nn::Module& module, const ParameterVisitor& visitor) {
  visit(module, "", visitor);
}

}  // namespace paceline::models
