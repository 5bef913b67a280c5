// What buckets a Reducer has, and for which parameters.

#include <algorithm>
#include <functional>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/parallel/reducer.h"
#include "paceline/training/tensor/collectives.h"
#include "paceline/training/tensor/tensor_memory.h"
#include "paceline/training/tensor/tensor_view.h"

namespace paceline {
namespace {

class GradientHook : public torch::autograd::FunctionPostHook {
 public:
  explicit GradientHook(std::function<void(const at::Tensor& incoming)> on_gradient)
      : on_gradient_(std::move(on_gradient)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list& inputs) override {
    on_gradient_(inputs.front());
    return outputs;
  }

 private:
  const std::function<void(const at::Tensor& incoming)> on_gradient_;
};

bool is_16_bit(at::ScalarType type) { return type == at::kHalf || type == at::kBFloat16; }

// Collective; the same answer on every rank.
bool tensors_need_no_copy(ProcessGroup& group, c10::Device device, std::size_t bytes) {
  if (!device.is_cpu()) return true;
  const at::Tensor probe = at::empty({static_cast<std::int64_t>(bytes)}, at::kByte);
  return all_reduce_value(group, int{group.is_symmetric(dense_view(probe))}, ReduceOp::kMin) != 0;
}

std::int64_t bytes_of(const std::vector<NamedParameter>& parameters) {
  std::int64_t bytes = 0;
  for (const auto& parameter : parameters) {
    bytes += static_cast<std::int64_t>(parameter.tensor.nbytes());
  }
  return bytes;
}

}  // namespace

Reducer::Reducer(std::shared_ptr<ProcessGroup> group, std::vector<NamedParameter> parameters,
                 const ReducerOptions& options)
    : group_(std::move(group)),
      options_(options),
      named_(std::move(parameters)),
      device_(one_device_of(named_, group_->rank(), parse_backend_choice(group_->backend()))),
      steps_(*group_, options.logical_shards, device_),
      large_need_no_copy_(tensors_need_no_copy(*group_, device_, kLargeGradientBytes)),
      turns_(LaunchTurns::of(*group_)),
      monitor_(*group_, named_, options.non_finite, options.guard_passes, turns_->next_number()),
      passes_(bytes_of(named_)) {
  static_assert(kLargeGradientBytes >= SymmetricTensors::kLeastBytes);
  for (const auto& named : named_) {
    Parameter parameter;
    parameter.named = named;
    parameters_.push_back(std::move(parameter));
  }
  follow_requirements();
}

Reducer::~Reducer() {
  turns_->forget(this);
  for (auto& parameter : parameters_) {
    if (parameter.accumulator) parameter.accumulator->del_post_hook(parameter.hook);
  }
}

void Reducer::follow_requirements() {
  bool has_changed = false;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    auto& parameter = parameters_[i];
    const at::Tensor& tensor = parameter.named.tensor;
    if (tensor.requires_grad() == parameter.is_trained) continue;
    has_changed = true;
    parameter.is_trained = tensor.requires_grad();
    if (!parameter.is_trained || parameter.accumulator) continue;
    check(tensor.is_leaf(), "parameter {} is computed from others", parameter.named.name);
    dense_view(tensor);  // throws for a tensor that cannot be communicated in place
    add_hook(i);
  }
  check(!has_changed || steps_.num_done() == 0,
        "{}: parameters were frozen or thawed in the middle of a step of logical shards: do it "
        "between steps",
        group_->self());
  if (has_changed) forget_plan();
}

void Reducer::add_hook(std::size_t index) {
  auto& parameter = parameters_[index];
  parameter.accumulator = torch::autograd::impl::grad_accumulator(parameter.named.tensor);
  parameter.hook = parameter.accumulator->add_post_hook(std::make_unique<GradientHook>(
      [this, index](const at::Tensor& incoming) { on_gradient(index, incoming); }));
}

// Gradients keep the memory that they lie in.
void Reducer::forget_plan() {
  if (hook_ && is_planned_) kept_by_hook_ = hook_state();
  is_planned_ = false;
  buckets_.clear();
  for (auto& parameter : parameters_) parameter.place = at::Tensor();
}

// Collective, at the end of a backward pass; before one where gradients are divided.
void Reducer::plan() {
  std::vector<at::Tensor> tensors;
  for (const auto& parameter : named_) tensors.push_back(parameter.tensor);
  require_same_parameters(*group_, named_);
  BucketLimits limits = options_.buckets;
  const bool widens =
      steps_.has_shards() && std::any_of(tensors.begin(), tensors.end(), [](const auto& tensor) {
        return is_16_bit(tensor.scalar_type());
      });
  if (hook_ || widens) {
    limits.alone_bytes = std::numeric_limits<std::size_t>::max();
  } else if (large_need_no_copy_) {
    limits.alone_bytes = std::min(limits.alone_bytes, kLargeGradientBytes);
  }
  auto plans = divides() ? plan_units() : plan_buckets(tensors, agreed_order(), limits);
  // A hook does not see the report, and it goes to every rank.
  if (plans.empty() || plans.back().is_alone || plans.back().layout.type() != at::kFloat || hook_ ||
      divides()) {
    plans.emplace_back();
  }
  const std::int64_t offset = plans.back().layout.append(monitor_.size());
  for (auto& plan : plans) make_bucket(std::move(plan));
  if (divides()) make_slots();
  monitor_.set_place(buckets_.back().flat.narrow(0, offset, monitor_.size()));
  is_planned_ = true;
  if (divides()) return;  // before a pass
  for (auto& parameter : parameters_) {
    if (parameter.is_trained && parameter.is_ready) store_gradient(parameter, {});
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].is_trained && parameters_[i].is_ready) monitor_.note_gradient(i);
  }
  if (hook_) prepare_hook();
}

// Rank 0's order of gradients: first those that came once, then those that came several times, then
// those that did not come. A hook that goes on gets the buckets that it had.
std::vector<std::size_t> Reducer::agreed_order() {
  if (auto kept = order_of_hook(); !kept.empty()) order_ = std::move(kept);
  const auto is_late = [this](std::size_t index) { return parameters_[index].is_late; };
  std::stable_partition(order_.begin(), order_.end(), std::not_fn(is_late));
  for (std::size_t i = parameters_.size(); i-- > 0;) {
    const bool is_there = std::find(order_.begin(), order_.end(), i) != order_.end();
    if (parameters_[i].is_trained && !is_there) order_.push_back(i);
  }
  std::vector<std::int64_t> shared(order_.begin(), order_.end());
  group_->broadcast(std::span(shared), 0);
  return {shared.begin(), shared.end()};
}

void Reducer::make_bucket(BucketPlan plan) {
  Bucket bucket;
  const FlatLayout& layout = plan.layout;
  const bool takes_turns = divides() && !plan.parameters.empty();  // at the slots
  if (!plan.is_alone && !takes_turns) bucket.flat = make_flat(layout.count(), layout.type());
  if (steps_.has_shards() && is_16_bit(layout.type())) {
    bucket.wide = make_flat(layout.count(), at::kFloat);
  }
  for (std::size_t i = 0; i < plan.parameters.size(); ++i) {
    auto& parameter = parameters_[plan.parameters[i]];
    parameter.bucket = buckets_.size();
    if (!plan.is_alone && !takes_turns) {
      parameter.place = layout.place(bucket.flat, i, parameter.named.tensor);
    }
  }
  bucket.plan = std::move(plan);
  buckets_.push_back(std::move(bucket));
}

at::Tensor Reducer::make_flat(std::int64_t count, at::ScalarType type) const {
  if (device_.is_cpu()) return empty_symmetric(*group_, {count}, type);
  return at::zeros({count}, at::TensorOptions(type).device(device_));
}

at::Tensor Reducer::content(const Bucket& bucket) const {
  if (bucket.flat.defined()) return bucket.flat;
  const auto& parameter = parameters_[bucket.plan.parameters.front()];
  return parameter.stand_in.defined() ? parameter.stand_in : parameter.named.tensor.mutable_grad();
}

}  // namespace paceline
