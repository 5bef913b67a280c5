#include "paceline/tensor_parallel/dense_weights.h"

#include <optional>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include <ATen/ATen.h>

#include "paceline/core/check.h"
#include "paceline/models/division.h"
#include "paceline/tensor/collectives.h"

namespace paceline {
namespace {

using models::Division;

struct Weight {
  at::Tensor tensor;
  std::optional<Division> division;

  std::vector<std::int64_t> whole_sizes() const {
    return division ? division->whole_sizes(tensor.sizes()) : tensor.sizes().vec();
  }
};

// Parameters and buffers.
std::map<std::string, Weight> weights_in(torch::nn::Module& module) {
  std::map<std::string, Weight> weights;
  models::visit_parameters(
      module, [&](const std::string& name, at::Tensor& parameter, const auto& division) {
        weights.emplace(name, Weight{parameter, division});
      });
  for (const auto& buffer : module.named_buffers())
    weights.emplace(buffer.key(), Weight{buffer.value(), {}});
  return weights;
}

std::string differences(const std::map<std::string, Weight>& own, const TensorsByName& given) {
  std::string text;
  for (const auto& [name, weight] : own) {
    const auto found = given.find(name);
    if (found == given.end()) {
      text +=
          fmt::format("\n  {}: [{}] here, not given", name, fmt::join(weight.whole_sizes(), ", "));
    } else if (found->second.sizes() != at::IntArrayRef(weight.whole_sizes())) {
      text +=
          fmt::format("\n  {}: [{}] here, given [{}]", name, fmt::join(weight.whole_sizes(), ", "),
                      fmt::join(found->second.sizes(), ", "));
    }
  }
  for (const auto& [name, tensor] : given) {
    if (!own.contains(name))
      text += fmt::format("\n  {}: given [{}], not here", name, fmt::join(tensor.sizes(), ", "));
  }
  return text;
}

at::Tensor gathered(const std::string& name, const Division& division, const at::Tensor& part,
                    ProcessGroup& group) {
  check(division.parts == group.world_size() && division.part == group.rank(),
        "rank {}: gather_dense: {} is part {} of {}, which are not the ranks of group {}; pass the "
        "group that the model was made for",
        group.rank(), name, division.part, division.parts, group.name());
  return division.joined(all_gather(group, part.contiguous()));
}

}  // namespace

TensorsByName gather_dense(torch::nn::Module& module, ProcessGroup& group, const OfParameter& of) {
  const at::NoGradGuard no_grad;
  TensorsByName whole;
  models::visit_parameters(
      module, [&](const std::string& name, at::Tensor& parameter, const auto& division) {
        const at::Tensor own = of ? of(parameter) : parameter;
        if (!own.defined()) return;
        whole.emplace(
            name, division ? gathered(name, *division, own.detach(), group) : own.detach().clone());
      });
  if (of) return whole;
  for (const auto& buffer : module.named_buffers())
    whole.emplace(buffer.key(), buffer.value().detach().clone());
  return whole;
}

void load_dense(torch::nn::Module& module, const TensorsByName& tensors) {
  std::map<std::string, Weight> own = weights_in(module);
  const std::string wrong = differences(own, tensors);
  check(wrong.empty(), "these weights are another model's:{}", wrong);
  const at::NoGradGuard no_grad;
  for (auto& [name, weight] : own) {
    const at::Tensor& whole = tensors.at(name);
    weight.tensor.copy_(weight.division ? weight.division->part_of(whole) : whole);
  }
}

}  // namespace paceline
