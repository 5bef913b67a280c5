#include "paceline/training/pipeline/stage_weights.h"

#include <cstddef>
#include <sstream>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/tensor/collectives.h"
#include "paceline/training/tensor/tensor_marks.h"

namespace paceline {

TiedWeights::TiedWeights(GroupRef group, std::vector<at::Tensor> own) : own_(std::move(own)) {
  holders_ = group->split(own_.empty() ? -1 : 0, group->rank(), {}, "tied");
  if (own_.empty()) return;
  const auto count = static_cast<std::int64_t>(own_.size());
  const auto most = all_reduce_value(*holders_, count, ReduceOp::kMax);
  const auto least = all_reduce_value(*holders_, count, ReduceOp::kMin);
  check(most == least, "{}: tied weights: {} here, {} to {} on the ranks that have any",
        group->self(), count, least, most);
  const at::NoGradGuard no_grad;
  for (const at::Tensor& weight : own_) broadcast(*holders_, weight.detach(), 0);
}

void TiedWeights::add_gradients() {
  const at::NoGradGuard no_grad;
  for (at::Tensor weight : own_) {
    if (!own_gradient(weight).defined()) own_gradient(weight) = at::zeros_like(weight);
    all_reduce(*holders_, own_gradient(weight));
  }
}

namespace {

constexpr ObjectOptions kAnySize{.max_bytes = std::size_t{1} << 40};

}  // namespace

std::map<std::string, at::Tensor> gather_stages(GroupRef group,
                                                const std::map<std::string, at::Tensor>& own) {
  std::map<std::string, at::Tensor> all;
  for (int rank = 0; rank < group->world_size(); ++rank) {
    std::string names;
    for (const auto& [name, tensor] : own) names += name + '\n';
    std::istringstream lines(broadcast_object(group, names, rank));
    for (std::string name; std::getline(lines, name);) {
      std::vector<at::Tensor> sent;
      if (rank == group->rank()) sent.push_back(own.at(name).detach().cpu());
      const auto received = broadcast_object(group, sent, rank, kAnySize);
      const at::Tensor tensor = rank == group->rank() ? sent.front().clone() : received.at(0);
      const auto [known, is_new] = all.emplace(name, tensor);
      check(is_new || (known->second.scalar_type() == tensor.scalar_type() &&
                       known->second.equal(tensor)),
            "{}: gather_stages: rank {} has another tensor named {} than a rank before it: give "
            "the parts of different stages different names (register_module)",
            group->self(), rank, name);
    }
  }
  return all;
}

}  // namespace paceline
