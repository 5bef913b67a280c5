#include "paceline/parallel/reducer.h"

#include <algorithm>
#include <chrono>
#include <functional>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "paceline/core/check.h"
#include "paceline/parallel/lockstep.h"
#include "paceline/tensor/collectives.h"
#include "paceline/tensor/symmetric_tensors.h"
#include "paceline/tensor/tensor_view.h"

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

// Whether `tensor` is in the memory of `other` and held in one place only.
bool is_sole_alias(const at::TensorBase& tensor, const at::Tensor& other) {
  return tensor.defined() && tensor.has_storage() && tensor.use_count() == 1 &&
         tensor.storage().unsafeGetStorageImpl() == other.storage().unsafeGetStorageImpl();
}

// Whether only `.grad` refers to the gradient's memory once autograd has dropped `incoming`, which
// it gave to the accumulator. Autograd makes an incoming tensor `.grad` when nobody else holds it,
// but that tensor may be a view of what nodes that run later read, of a saved tensor, or of what
// the user gave to backward(). Whoever holds the memory is counted in its storage; known are
// `.grad`, `incoming`, and the tensor that `incoming` is a view of (a linear layer's weight gets a
// transposed product).
bool has_memory_alone(const at::Tensor& gradient, const at::Tensor& incoming) {
  std::size_t known = 1;
  if (is_sole_alias(incoming, gradient)) {
    ++known;
    if (incoming.is_view() && is_sole_alias(incoming._base(), gradient)) ++known;
  }
  return gradient.storage().use_count() == known;
}

// The elements of `flat` from `offset` on, shaped like `tensor`. Not a view in autograd's sense:
// optimizers detach gradients in place, which views refuse.
at::Tensor place_in(const at::Tensor& flat, std::size_t offset, const at::Tensor& tensor) {
  auto* const data = static_cast<std::byte*>(flat.data_ptr()) + offset * flat.element_size();
  return at::from_blob(
      data, tensor.sizes(), tensor.strides(), [flat](void*) {}, flat.options(), flat.device());
}

// From here on the copy into a bucket costs more than an all-reduce of its own.
constexpr std::size_t kLargeBytes = 512 << 10;
static_assert(kLargeBytes >= SymmetricTensors::kLeastBytes);

// Collective; the same answer on every rank.
bool large_tensors_need_no_copy(ProcessGroup& group, c10::Device device) {
  if (!device.is_cpu()) return true;
  const at::Tensor probe = at::empty({static_cast<std::int64_t>(kLargeBytes)}, at::kByte);
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
                 const BucketLimits& limits)
    : group_(std::move(group)),
      device_(one_device_of(parameters, group_->rank(), parse_backend_choice(group_->backend()))),
      passes_(bytes_of(parameters)) {
  std::vector<at::Tensor> tensors;
  for (auto& named : parameters) {
    check(named.tensor.requires_grad() && named.tensor.is_leaf(),
          "parameter {} requires no gradient", named.name);
    dense_view(named.tensor);  // throws for a tensor that cannot be communicated in place
    tensors.push_back(named.tensor);
    Parameter parameter;
    parameter.named = std::move(named);
    parameters_.push_back(std::move(parameter));
  }
  BucketLimits all_limits = limits;
  if (large_tensors_need_no_copy(*group_, device_))
    all_limits.alone_bytes = std::min(all_limits.alone_bytes, kLargeBytes);
  for (auto& plan : plan_buckets(tensors, all_limits)) make_bucket(std::move(plan));
  for (std::size_t i = 0; i < parameters_.size(); ++i) add_hook(i);
}

Reducer::~Reducer() {
  for (auto& parameter : parameters_) {
    if (parameter.accumulator) parameter.accumulator->del_post_hook(parameter.hook);
  }
}

void Reducer::make_bucket(BucketPlan plan) {
  Bucket bucket;
  if (!plan.is_alone) bucket.flat = make_flat(plan);
  for (const auto& slot : plan.slots) {
    auto& parameter = parameters_[slot.parameter];
    parameter.bucket = buckets_.size();
    if (!plan.is_alone)
      parameter.place = place_in(bucket.flat, slot.offset, parameter.named.tensor);
  }
  bucket.plan = std::move(plan);
  buckets_.push_back(std::move(bucket));
}

at::Tensor Reducer::make_flat(const BucketPlan& plan) const {
  const auto count = static_cast<std::int64_t>(plan.count);
  if (device_.is_cpu()) return empty_symmetric(*group_, {count}, plan.type);
  return at::zeros({count}, at::TensorOptions(plan.type).device(device_));
}

void Reducer::add_hook(std::size_t index) {
  auto& parameter = parameters_[index];
  parameter.accumulator = torch::autograd::impl::grad_accumulator(parameter.named.tensor);
  parameter.hook = parameter.accumulator->add_post_hook(std::make_unique<GradientHook>(
      [this, index](const at::Tensor& incoming) { on_gradient(index, incoming); }));
}

void Reducer::on_gradient(std::size_t index, const at::Tensor& incoming) {
  if (!synchronize_) return;
  if (!in_backward_) begin_backward();
  auto& parameter = parameters_[index];
  check(!parameter.ready,
        "rank {}: parameter {} got two gradients in one backward pass; a parameter that is used in "
        "several backward passes at once is not supported. After a pass that an exception ended, "
        "the next must begin with DistributedDataParallel's forward()",
        group_->rank(), parameter.named.name);
  store_gradient(parameter, incoming);
  parameter.ready = true;
  --buckets_[parameter.bucket].missing;
  launch_complete_buckets();
}

void Reducer::begin_backward() {
  check(saw_forward_,
        "rank {}: a backward pass reached the parameters, but the forward pass did not run through "
        "DistributedDataParallel: call model->forward(x), or model(x), of the wrapper, not of the "
        "module that was given to it",
        group_->rank());
  in_backward_ = true;
  next_bucket_ = 0;
  for (auto& bucket : buckets_) bucket.missing = bucket.plan.slots.size();
  for (auto& parameter : parameters_) parameter.ready = false;
  torch::autograd::Engine::get_default_engine().queue_callback([this] { end_backward(); });
}

// A gradient that has accumulated in its place is there already.
void Reducer::store_gradient(Parameter& parameter, const at::Tensor& incoming) const {
  if (group_->world_size() == 1) return;
  const at::NoGradGuard no_grad;
  const at::Tensor& tensor = parameter.named.tensor;
  at::Tensor& gradient = tensor.mutable_grad();
  if (!parameter.place.defined()) {
    // The sum is written while the pass goes on, and rank by rank in the same order of elements:
    // the parameter's.
    if (gradient.strides() != tensor.strides() || !has_memory_alone(gradient, incoming))
      gradient = at::empty_like(tensor.detach()).copy_(gradient);
  } else if (!gradient.is_alias_of(parameter.place)) {
    parameter.place.copy_(gradient);
    gradient = parameter.place;
  }
}

at::Tensor Reducer::content(const Bucket& bucket) const {
  if (bucket.flat.defined()) return bucket.flat;
  return parameters_[bucket.plan.slots.front().parameter].named.tensor.grad();
}

void Reducer::launch_complete_buckets() {
  while (next_bucket_ < buckets_.size() && buckets_[next_bucket_].missing == 0) {
    auto& bucket = buckets_[next_bucket_++];
    if (group_->world_size() == 1) continue;
    in_lockstep([&] { bucket.work = all_reduce_async(*group_, content(bucket), ReduceOp::kMean); });
  }
}

void Reducer::end_backward() {
  in_backward_ = false;
  require_all_ready();
  const auto begin = std::chrono::steady_clock::now();
  wait_for_buckets();
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
  exposed_seconds_ += waited.count();
  passes_.end_backward(waited.count());
}

void Reducer::wait_for_buckets() {
  in_lockstep([this] {
    for (auto& bucket : buckets_) {
      if (const auto work = std::exchange(bucket.work, nullptr)) work->wait();
    }
  });
}

void Reducer::before_forward(std::int64_t samples) {
  if (torch::autograd::get_current_graph_task_exec_info() != nullptr) return;
  if (in_backward_) forget_failed_pass();
  saw_forward_ = true;
  passes_.begin_forward(samples, at::GradMode::is_enabled());
}

void Reducer::forget_failed_pass() {
  in_backward_ = false;
  try {
    wait_for_buckets();
    // No bucket is like this call. A rank whose pass went on is thus told apart, also where its
    // next bucket is as large as the one that begins the next pass here.
    all_reduce_value(*group_, std::uint8_t{1}, ReduceOp::kMin);
  } catch (const Error& error) {
    fail(error.code(),
         "rank {}: an exception had ended the last backward pass on this rank, and the ranks could "
         "not go on together; it must have come on every rank, or end this one: {}",
         group_->rank(), error.what());
  }
  for (const auto& parameter : parameters_) parameter.named.tensor.mutable_grad() = at::Tensor();
}

void Reducer::require_all_ready() {
  std::string names;
  for (const auto& parameter : parameters_) {
    if (!parameter.ready) names += (names.empty() ? "" : ", ") + parameter.named.name;
  }
  if (names.empty()) return;
  const std::string message = fmt::format(
      "the backward pass gave no gradient to: {}. Every parameter must take part in the loss on "
      "every rank; freeze the others with set_requires_grad(false) before wrapping the module",
      names);
  group_->abort(message);  // the other ranks wait for a bucket that will not come
  fail(ErrorCode::kInvalid, "rank {}: {}", group_->rank(), message);
}

double Reducer::take_exposed_seconds() { return std::exchange(exposed_seconds_, 0.0); }

}  // namespace paceline
