#include "paceline/training/parallel/reducer.h"

#include <algorithm>
#include <chrono>
#include <functional>

#include <xxhash.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/parallel/activation_checkpoint.h"
#include "paceline/training/tensor/collectives.h"

namespace paceline {
namespace {

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

}  // namespace

// ---- while the pass goes on

void Reducer::on_gradient(std::size_t index, const at::Tensor& incoming) {
  if (!incoming.defined()) return;  // of a part that did not use it
  auto& parameter = parameters_[index];
  parameter.is_used = true;
  if (!steps_.collects()) return;
  if (!in_backward_) begin_backward();
  if (!is_planned_) note_order(index, parameter.is_ready);
  if (parameter.is_ready) expect_another(parameter);
  if (is_planned_ && has_room(parameter.bucket)) store_gradient(parameter, incoming);
  parameter.is_ready = true;
  if (is_planned_ || is_alone()) monitor_.note_gradient(index);
  if (!is_planned_) return;
  if (parameter.is_late) return;
  --buckets_[parameter.bucket].missing;
  if (turns_->is_up(this)) launch_complete_buckets();
}

void Reducer::begin_backward() {
  check(saw_forward_,
        "{}: a backward pass reached the parameters, but the forward pass did not run through "
        "DistributedDataParallel: call model->forward(x), or model(x), of the wrapper, not of the "
        "module that was given to it",
        group_->self());
  steps_.require_place();
  begin_pass();
  at_end_of_backward([this] { end_backward(); });
}

void Reducer::begin_pass() {
  if (steps_.averages()) hook_tensors_.verify_before_pass(kHookTensor, *group_, num_steps_);
  in_backward_ = true;
  next_bucket_ = 0;
  order_.clear();
  for (auto& bucket : buckets_) {
    bucket.missing = static_cast<std::size_t>(std::ranges::count_if(
        bucket.plan.parameters, [this](std::size_t i) { return parameters_[i].is_trained; }));
    bucket.has_room = false;
  }
  for (auto& parameter : parameters_) parameter.is_ready = false;
  if (!is_alone() && steps_.averages()) turns_->enter(this, [this] { launch_complete_buckets(); });
}

void Reducer::pass_without_inputs() {
  if (in_backward_) forget_failed_pass();
  follow_requirements();
  if (divides() && !is_planned_) plan();
  drop_gradients();
  const bool synchronized = synchronizes();
  set_synchronize(true);
  has_inputs_ = false;
  begin_pass();
  end_backward();
  has_inputs_ = true;
  set_synchronize(synchronized);
}

void Reducer::set_divisor(const UnevenInputs::Others& others) {
  steps_.set_divisor(others.divisor);
  all_have_inputs_ = others.num_active == group_->world_size();
}

void Reducer::note_order(std::size_t index, bool again) {
  if (again) std::erase(order_, index);
  order_.push_back(index);
}

// Of a parameter that has had a gradient in this pass.
void Reducer::expect_another(Parameter& parameter) {
  if (parameter.is_late) return;
  check(!is_planned_ || parameter.bucket >= next_bucket_,
        "{}: parameter {} got another gradient while its first one of this pass was being "
        "averaged. A parameter that several parts under checkpoint() share must be used so from "
        "the first pass on. After a pass that an exception ended, the next must begin with "
        "DistributedDataParallel's forward()",
        group_->self(), parameter.named.name);
  parameter.is_late = true;
  if (is_planned_) ++buckets_[parameter.bucket].missing;
}

// A gradient that has accumulated in its place is there already. `incoming` may be undefined.
void Reducer::store_gradient(Parameter& parameter, const at::Tensor& incoming) const {
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

void Reducer::launch_complete_buckets() {
  while (next_bucket_ < buckets_.size() && buckets_[next_bucket_].missing == 0)
    launch(next_bucket_++);
  if (is_planned_ && next_bucket_ == buckets_.size()) turns_->pass_on(this);
}

bool Reducer::compares_replicas() const {
  return all_have_inputs_ && (!hook_ || hook_->keeps_replicas_equal());
}

// Once the last bucket is complete it is known which parameters this rank has used.
void Reducer::write_report() {
  std::vector<bool> used;
  for (const auto& parameter : parameters_) used.push_back(parameter.is_used);
  monitor_.write(std::move(used), num_steps_, compares_replicas());
}

void Reducer::launch(std::size_t index) {
  auto& bucket = buckets_[index];
  if (index + 1 == buckets_.size()) write_report();
  bucket.round = 0;
  if (hook_ && !bucket.plan.parameters.empty()) {
    bucket.work = start_round(index);
    return;
  }
  if (is_unit(index)) return launch_parts(index);
  TensorCall call{.op = Op::kAllReduce, .reduce_op = ReduceOp::kMean};
  call.input = call.output = leaving(bucket);
  if (steps_.has_shards()) bucket.shards.finish(call.input);
  if (steps_.divisor() != group_->world_size())
    call.divisor = static_cast<std::uint32_t>(steps_.divisor());
  in_lockstep([&] { bucket.work = start(*group_, call); });
}

// What leaves the rank of a bucket that is complete.
at::Tensor Reducer::leaving(const Bucket& bucket) const {
  if (!bucket.wide.defined()) return content(bucket);
  const at::NoGradGuard no_grad;
  return bucket.wide.copy_(bucket.flat);
}

// ---- its end

// After an error the next forward pass forgets this one.
void Reducer::end_backward() {
  if (options_.require_all_used && has_inputs_) require_all_ready();
  std::chrono::duration<double> waited{};
  const bool averages_now = steps_.averages();
  if (averages_now) note_accumulated();
  if (is_alone()) {
    monitor_.judge_alone(averages_now, num_steps_);
  } else {
    in_lockstep([this] {
      if (!is_planned_) plan();
    });
    const auto begin = std::chrono::steady_clock::now();
    complete_buckets();
    averages_now ? average() : add_shard();
    waited = std::chrono::steady_clock::now() - begin;
  }
  in_backward_ = false;
  steps_.end_pass();
  if (!averages_now) return;
  note_hook();
  for (auto& parameter : parameters_) parameter.is_used = false;
  monitor_.begin_step();
  ++num_steps_;
  exposed_seconds_ += waited.count();
  passes_.end_backward(waited.count(), version_of_parameters());
  if (is_alone()) return;
  turns_->end(this, has_inputs_ ? options_.at_end_of_step : std::function<void()>());
}

// A number that is another one after each step of an optimizer. LibTorch's own optimizers write
// past its count of writes, so this looks at the beginning of each parameter as well, unless its
// memory may be on another host.
std::uint64_t Reducer::version_of_parameters() const {
  constexpr std::size_t kBeginning = 64;  // bytes
  const bool may_read = device_.is_cpu() && options_.optimizer == nullptr;
  std::uint64_t version = 0;
  for (const auto& parameter : parameters_) {
    const at::Tensor& tensor = parameter.named.tensor;
    version += tensor._version();
    if (may_read && parameter.is_trained && tensor.numel() > 0) {
      version =
          XXH3_64bits_withSeed(tensor.data_ptr(), std::min(tensor.nbytes(), kBeginning), version);
    }
  }
  return version;
}

// What passes before this one gave parameters that this one does not use.
void Reducer::note_accumulated() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].is_used && !parameters_[i].is_ready) monitor_.note_gradient(i);
  }
}

// The gradients of a shard that is not the last one.
void Reducer::add_shard() {
  const at::NoGradGuard no_grad;
  monitor_.clear();
  for (auto& bucket : buckets_) {
    if (bucket.plan.parameters.empty()) continue;
    const bool is_own_copy = bucket.plan.is_alone || bucket.wide.defined();
    bucket.shards.add(bucket.wide.defined() ? bucket.flat.to(at::kFloat) : content(bucket),
                      is_own_copy);
  }
  for (auto& parameter : parameters_) parameter.stand_in = at::Tensor();
  drop_gradients();
}

void Reducer::average() {
  launch_complete_buckets();
  wait_for_buckets();
  take_averages_of_others();
  if (divides()) tell_optimizer();
  monitor_.read(steps_.divisor(), num_steps_, compares_replicas());
}

void Reducer::require_all_ready() {
  std::string names;
  for (const auto& parameter : parameters_) {
    if (!parameter.is_trained || parameter.is_ready) continue;
    names += (names.empty() ? "" : ", ") + parameter.named.name;
  }
  if (names.empty()) return;
  const std::string message = fmt::format(
      "the backward pass gave no gradient to: {}. With require_all_used every parameter must take "
      "part in the loss on every rank; freeze the others with set_requires_grad(false)",
      names);
  group_->abort(message);  // the other ranks wait for a bucket that will not come
  fail(ErrorCode::kInvalid, "{}: {}", group_->self(), message);
}

void Reducer::complete_buckets() {
  if (divides()) return complete_parts();
  for (auto& parameter : parameters_) {
    if (parameter.is_trained && !parameter.is_ready) stand_in_for(parameter);
  }
  for (auto& bucket : buckets_) bucket.missing = 0;
}

// Of a parameter without a gradient in this pass goes what earlier passes gave it, or zero. Its
// `.grad` is elsewhere meanwhile: it stays if no rank has one.
void Reducer::stand_in_for(Parameter& parameter) {
  const at::NoGradGuard no_grad;
  at::Tensor& gradient = parameter.named.tensor.mutable_grad();
  at::Tensor& goes = parameter.place.defined() ? parameter.place : parameter.stand_in;
  if (gradient.defined() && parameter.place.defined() && gradient.is_alias_of(parameter.place)) {
    gradient = gradient.clone();
    return;
  }
  if (!goes.defined()) goes = at::empty_like(parameter.named.tensor.detach());
  gradient.defined() ? goes.copy_(gradient) : goes.zero_();
}

void Reducer::wait_for_buckets() {
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
      auto& bucket = buckets_[i];
      if (!bucket.work) continue;
      finish(i);
      if (!hook_ || bucket.plan.parameters.empty()) continue;
      ++bucket.round;
      bucket.work = start_round(i);
      goes_on |= bucket.work != nullptr;
    }
  }
}

void Reducer::finish(std::size_t index) {
  auto& bucket = buckets_[index];
  const auto work = std::exchange(bucket.work, nullptr);
  if (!work) return;
  in_lockstep([&] { work->wait(); });
  const at::NoGradGuard no_grad;
  if (is_unit(index)) return finish_parts(index);
  if (bucket.wide.defined()) bucket.flat.copy_(bucket.wide);
}

void Reducer::take_averages_of_others() {
  if (divides()) return;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    auto& parameter = parameters_[i];
    const at::Tensor average =
        parameter.place.defined() ? parameter.place : std::exchange(parameter.stand_in, {});
    if (!parameter.is_trained || parameter.is_ready) continue;
    if (monitor_.is_used(i)) parameter.named.tensor.mutable_grad() = average;
  }
}

double Reducer::take_exposed_seconds() {
  const double for_parameters =
      options_.optimizer != nullptr ? options_.optimizer->take_exposed_seconds() : 0;
  return std::exchange(exposed_seconds_, 0.0) + for_parameters;
}

// ---- between passes

void Reducer::verify() const {
  hook_tensors_.verify(kHookTensor, *group_, num_steps_);
  if (options_.verify_buffers) options_.verify_buffers();
}

void Reducer::before_forward(std::int64_t samples) {
  if (torch::autograd::get_current_graph_task_exec_info() != nullptr) return;
  if (in_backward_) forget_failed_pass();
  follow_requirements();
  if (divides() && !is_planned_) plan();
  if (steps_.has_shards() && steps_.begins_step() && at::GradMode::is_enabled()) forget_gradients();
  saw_forward_ = true;
  passes_.begin_forward(samples, at::GradMode::is_enabled());
}

void Reducer::forget_failed_pass() {
  in_backward_ = false;
  turns_->forget(this);
  try {
    for (auto& bucket : buckets_) {
      if (const auto work = std::exchange(bucket.work, nullptr)) work->wait();
      bucket.received = at::Tensor();
    }
    // No bucket is like this call. A rank whose pass went on is thus told apart, also where its
    // next bucket is as large as the one that begins the next pass here.
    all_reduce_value(*group_, std::uint8_t{1}, ReduceOp::kMin);
  } catch (const Error& error) {
    fail(error.code(),
         "{}: an exception had ended the last backward pass on this rank, and the ranks could "
         "not go on together; it must have come on every rank, or end this one: {}",
         group_->self(), error.what());
  }
  for (auto& bucket : buckets_) bucket.shards.clear();
  steps_.forget();
  monitor_.begin_step();
  for (auto& parameter : parameters_) {
    parameter.is_used = false;
    parameter.stand_in = at::Tensor();
  }
  forget_gradients();
}

// Also those that the optimizer has been given.
void Reducer::forget_gradients() {
  if (divides()) options_.optimizer->zero_grad();
  drop_gradients();
}

void Reducer::drop_gradients() {
  for (auto& parameter : parameters_) {
    if (parameter.is_trained) parameter.named.tensor.mutable_grad() = at::Tensor();
  }
}

}  // namespace paceline
