#include "paceline/training/tensor_parallel/full_state_dict.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include <ATen/ATen.h>

#include "paceline/engine/collectives/memory/one_copy.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/training/models/divided_layer.h"
#include "paceline/training/models/layer_functions.h"
#include "paceline/training/tensor/collectives.h"

namespace paceline {
namespace {

using models::Division;

struct Weight {
  at::Tensor tensor;
  std::optional<Division> division;

  std::vector<std::int64_t> whole_sizes() const {
    return division ? division->whole_sizes(tensor.sizes()) : tensor.sizes().vec();
  }
  // Returns a tensor of the whole sizes over the memory at `place`.
  at::Tensor whole_at(std::byte* place, const std::function<void(void*)>& deleter) const {
    return at::from_blob(place, whole_sizes(), deleter, tensor.options());
  }
};
using Weights = std::map<std::string, Weight>;

// Returns the parameters and buffers or, with `of`, the tensors that `of` returns for the
// parameters.
Weights weights_in(torch::nn::Module& module, const OfParameter& of = {}) {
  Weights weights;
  models::visit_parameters(
      module, [&](const std::string& name, at::Tensor& parameter, const auto& division) {
        const at::Tensor own = of ? of(parameter) : parameter;
        if (own.defined()) weights.emplace(name, Weight{own.detach(), division});
      });
  if (of) return weights;
  for (const auto& buffer : module.named_buffers())
    weights.emplace(buffer.key(), Weight{buffer.value(), {}});
  return weights;
}

std::string differences(const Weights& own, const StateDict& given) {
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

void require_parts_of(const ProcessGroup& group, const Weights& weights) {
  for (const auto& [name, weight] : weights) {
    const auto& division = weight.division;
    check(!division || (division->parts == group.world_size() && division->part == group.rank()),
          "{}: full_state_dict: {} is part {} of {}, which are not the ranks of group {}; pass "
          "the group that the model was made for",
          group.self(), name, division ? division->part : 0, division ? division->parts : 1,
          group.name());
  }
}

// Allocates the copy that all ranks share; null if the ranks share no memory.
std::shared_ptr<const OneCopy> one_copy_of(ProcessGroup& group, std::size_t bytes,
                                           std::vector<NamedRange> names) {
  try {
    return std::make_shared<const OneCopy>(group, bytes, std::move(names));
  } catch (const Error& error) {  // every rank gets the same error
    if (error.code() == ErrorCode::kUnsupported) return nullptr;
    throw;
  }
}

// Writes the part to its place in the whole weight: the inverse of Division::part_of().
void write_part(const Division& division, const at::Tensor& part, const at::Tensor& whole) {
  std::int64_t begin = 0, done = 0;
  for (const std::int64_t section : division.sections) {
    const std::int64_t length = section / division.parts;
    whole.narrow(division.dim, begin + division.part * length, length)
        .copy_(part.narrow(division.dim, done, length));
    begin += section;
    done += length;
  }
}

// Returns the shared copy, into which every rank writes its parts; empty if the ranks cannot share
// a copy.
StateDict joined_in_one_copy(const Weights& weights, ProcessGroup& group) {
  constexpr std::size_t kAlignment = 64;
  if (group.world_size() == 1) return {};
  std::vector<NamedRange> places;
  std::size_t bytes = 0;
  for (const auto& [name, weight] : weights) {
    if (!weight.tensor.is_cpu()) return {};
    places.push_back({bytes, "weight " + name});
    const auto count = c10::multiply_integers(weight.whole_sizes());
    bytes += static_cast<std::size_t>(count) * weight.tensor.element_size();
    bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  if (bytes == 0) return {};
  const auto copy = one_copy_of(group, bytes, places);
  if (copy == nullptr) return {};
  StateDict whole;
  auto place = places.begin();
  for (const auto& [name, weight] : weights) {
    const std::size_t begin = place++->begin;
    const at::Tensor written = weight.whole_at(copy->data() + begin, [](void*) {});
    if (weight.division) {
      write_part(*weight.division, weight.tensor, written);
    } else if (group.rank() == 0) {
      written.copy_(weight.tensor);
    }
    whole.emplace(name, weight.whole_at(copy->read_only() + begin, [copy](void*) {}));
  }
  group.barrier();
  return whole;
}

}  // namespace

StateDict full_state_dict(torch::nn::Module& module, GroupRef group, const OfParameter& of) {
  const at::NoGradGuard no_grad;
  const Weights weights = weights_in(module, of);
  require_parts_of(group, weights);
  StateDict whole = joined_in_one_copy(weights, group);
  if (!whole.empty()) return whole;
  for (const auto& [name, weight] : weights) {
    whole.emplace(name, weight.division
                            ? weight.division->joined(all_gather(group, weight.tensor.contiguous()))
                            : weight.tensor.clone());
  }
  return whole;
}

void load_full_state_dict(torch::nn::Module& module, const StateDict& tensors) {
  Weights own = weights_in(module);
  const std::string wrong = differences(own, tensors);
  check(wrong.empty(), "these weights belong to another model:{}", first_lines(wrong));
  const at::NoGradGuard no_grad;
  for (auto& [name, weight] : own) {
    const at::Tensor& whole = tensors.at(name);
    weight.tensor.copy_(weight.division ? weight.division->part_of(whole) : whole);
  }
}

}  // namespace paceline
