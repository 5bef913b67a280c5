#include "paceline/training/tensor_parallel/parallel_linear.h"

#include <ostream>
#include <utility>

#include <torch/nn/modules/linear.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/autograd/regions.h"
#include "paceline/training/models/divided_layer.h"
#include "paceline/training/models/layer_functions.h"
#include "paceline/training/models/layers.h"
#include "paceline/training/tensor_parallel/require_parts.h"

namespace paceline {
namespace {

using tensor_parallel::division_among;
using tensor_parallel::note_parts;
using tensor_parallel::require_features;
using tensor_parallel::require_group;

constexpr const char* kColumn = "ColumnParallelLinear";
constexpr const char* kRow = "RowParallelLinear";
constexpr std::int64_t kSpreadDim = 1;

void print(std::ostream& stream, const char* name, const torch::nn::LinearOptions& linear,
           const ProcessGroup& group) {
  stream << "paceline::" << name << "(in_features=" << linear.in_features()
         << ", out_features=" << linear.out_features() << ", bias=" << std::boolalpha
         << linear.bias() << ", part=" << group.rank() << "/" << group.world_size() << ")";
}

}  // namespace

ColumnParallelLinearImpl::ColumnParallelLinearImpl(const torch::nn::LinearOptions& linear,
                                                   GroupPtr group,
                                                   const ColumnParallelOptions& parallel)
    : linear_(linear), group_(std::move(group)), parallel_(parallel) {
  require_group(kColumn, group_);
  division_ = division_among(kColumn, *group_, 0, linear.out_features(), parallel.inner);
  check(!parallel.gather_output || division_.sections.size() == 1,
        "{}: {}: an output of several kinds of features cannot be gathered", group_->self(),
        kColumn);
  ColumnParallelLinearImpl::reset();
}

void ColumnParallelLinearImpl::reset() {
  const torch::nn::Linear whole(linear_);
  weight = register_parameter("weight", division_.part_of(whole->weight.detach()));
  const bool has_bias = linear_.bias();
  bias = register_parameter(
      "bias", has_bias ? division_.part_of(whole->bias.detach()) : at::Tensor(), has_bias);
  note_parts(kColumn, division_, has_bias ? std::vector{weight, bias} : std::vector{weight});
}

at::Tensor ColumnParallelLinearImpl::forward(const at::Tensor& input) {
  require_features(kColumn, *group_, input, linear_.in_features());
  const at::Tensor whole = parallel_.sequence_parallel_input
                               ? all_gather_autograd(group_, input, kSpreadDim)
                               : copy_to_region(group_, input);
  const at::Tensor part = models::apply_linear(whole, weight, bias);
  return parallel_.gather_output ? gather_from_region(group_, part, -1) : part;
}

std::optional<models::Division> ColumnParallelLinearImpl::division_of(const std::string&) const {
  return division_;
}

void ColumnParallelLinearImpl::pretty_print(std::ostream& stream) const {
  print(stream, kColumn, linear_, *group_);
}

RowParallelLinearImpl::RowParallelLinearImpl(const torch::nn::LinearOptions& linear, GroupPtr group,
                                             const RowParallelOptions& parallel)
    : linear_(linear), group_(std::move(group)), parallel_(parallel) {
  require_group(kRow, group_);
  division_ = division_among(kRow, *group_, 1, linear.in_features(), parallel.inner);
  check(division_.sections.size() == 1, "{}: {}: takes input features of one kind", group_->self(),
        kRow);
  RowParallelLinearImpl::reset();
}

void RowParallelLinearImpl::reset() {
  const torch::nn::Linear whole(linear_);
  weight = register_parameter("weight", division_.part_of(whole->weight.detach()));
  const bool has_bias = linear_.bias();
  bias = register_parameter("bias", has_bias ? whole->bias.detach() : at::Tensor(), has_bias);
  note_parts(kRow, division_, {weight});
}

at::Tensor RowParallelLinearImpl::forward(const at::Tensor& input) {
  require_features(kRow, *group_, input,
                   parallel_.whole_input ? linear_.in_features() : weight.size(1));
  const at::Tensor part = parallel_.whole_input ? scatter_to_region(group_, input, -1) : input;
  const at::Tensor partial = models::apply_linear(part, weight);
  const at::Tensor sum = parallel_.sequence_parallel_output
                             ? reduce_scatter_autograd(group_, partial, kSpreadDim)
                             : reduce_from_region(group_, partial);
  if (!bias.defined()) return sum;
  // If the positions are divided, every rank has a part of the bias's gradient.
  return sum + (parallel_.sequence_parallel_output ? copy_to_region(group_, bias) : bias);
}

std::optional<models::Division> RowParallelLinearImpl::division_of(
    const std::string& parameter) const {
  if (parameter == "weight") return division_;
  return {};
}

void RowParallelLinearImpl::pretty_print(std::ostream& stream) const {
  print(stream, kRow, linear_, *group_);
}

}  // namespace paceline
