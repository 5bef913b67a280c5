#include "paceline/training/parallel/reducer/reducer.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include <fmt/ranges.h>
#include <xxhash.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "paceline/engine/collectives/group/object_collectives.h"
#include "paceline/engine/core/check.h"
#include "paceline/training/optim/metadata_words.h"
#include "paceline/training/optim/optimizer_core.h"
#include "paceline/training/parallel/activation_checkpoint.h"
#include "paceline/training/parallel/backward_end.h"
#include "paceline/training/parallel/reducer/gradient_placement.h"
#include "paceline/training/tensor/collectives.h"
#include "paceline/training/tensor/tensor_memory.h"
#include "paceline/training/tensor/tensor_view.h"

namespace paceline {

namespace {

class GradientHook : public torch::autograd::FunctionPostHook {
 public:
  GradientHook(std::function<void(const at::Tensor& incoming)> on_gradient, bool divides)
      : divides_(divides), on_gradient_(std::move(on_gradient)) {}
  // Whether the reducer divides the gradients among the ranks.
  bool divides() const { return divides_; }
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list& inputs) override {
    on_gradient_(inputs.front());
    return outputs;
  }

 private:
  const bool divides_;
  const std::function<void(const at::Tensor& incoming)> on_gradient_;
};

// Collective: whether tensors of `bytes` bytes can be reduced in place. Every rank gets the same
// answer.
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
                 const DistributedDataParallelOptions& options, ReducerCallbacks callbacks)
    : group_(std::move(group)),
      options_(options),
      callbacks_(std::move(callbacks)),
      buckets_(std::move(parameters)),
      hooks_(buckets_.parameters.size()),
      device_(one_device_of(buckets_.parameters, group_->rank())),
      streams_(device_),
      steps_(*group_, options.logical_shards, device_),
      communicates_(group_->world_size() > 1 || steps_.has_shards()),
      large_need_no_copy_(tensors_need_no_copy(*group_, device_, kAloneBytes)),
      turns_(LaunchTurns::of(*group_)),
      monitor_(*group_, buckets_.parameters, options.non_finite, options.check_replicas_every,
               turns_->next_number()),
      placement_(make_placement(nullptr)),
      counter_(bytes_of(buckets_.parameters)) {
  static_assert(kAloneBytes >= SymmetricTensors::kMinBytes);
  follow_requirements();
}

Reducer::~Reducer() {
  turns_->forget(this);
  for (auto& hook : hooks_) {
    if (hook.accumulator) hook.accumulator->del_post_hook(hook.key);
  }
}

// ---- before passes

void require_undivided(const ProcessGroup& group, const std::vector<NamedParameter>& parameters) {
  for (const auto& [name, tensor] : parameters) {
    const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(tensor);
    if (!accumulator) continue;
    for (const auto& hook : accumulator->post_hooks()) {
      const auto* const other = dynamic_cast<const GradientHook*>(hook.get());
      check(other == nullptr || !other->divides(),
            "{}: parameter {} belongs to a module that fully_shard() has divided, which cannot "
            "have a DistributedDataParallel as well: use the wrapper that fully_shard() returned",
            group.self(), name);
    }
  }
}

void Reducer::follow_requirements() {
  bool has_changed = false;
  for (std::size_t i = 0; i < buckets_.gradients.size(); ++i) {
    Gradient& gradient = buckets_.gradients[i];
    const at::Tensor& tensor = gradient.parameter;
    if (tensor.device() != device_) [[unlikely]] {
      fail(ErrorCode::kInvalid,
           "{}: parameter {} is on {}, but was on {} when the module was wrapped: call "
           "module->to(device) before wrapping it",
           group_->self(), buckets_.parameters[i].name, tensor.device().str(), device_.str());
    }
    if (gradient.is_trained && !has_hook(i)) add_hook(i);
    if (tensor.requires_grad() == gradient.is_trained) continue;
    has_changed = true;
    gradient.is_trained = tensor.requires_grad();
    if (!gradient.is_trained || has_hook(i)) continue;
    check(tensor.is_leaf(), "parameter {} is computed from others", buckets_.parameters[i].name);
    dense_view(tensor);  // throws for a tensor that cannot be communicated in place
    add_hook(i);
  }
  check(!has_changed || steps_.num_done() == 0,
        "{}: parameters were frozen or thawed in the middle of a step of logical shards: do it "
        "between steps",
        group_->self());
  if (has_changed) forget_plan();
}

// torch::load() and set_() give a parameter other memory, and LibTorch then makes another
// accumulator for its gradient.
bool Reducer::has_hook(std::size_t index) const {
  const auto& accumulator = hooks_[index].accumulator;
  return accumulator && accumulator == torch::autograd::impl::try_get_grad_accumulator(
                                           buckets_.parameters[index].tensor);
}

void Reducer::add_hook(std::size_t index) {
  auto& hook = hooks_[index];
  hook.accumulator = torch::autograd::impl::grad_accumulator(buckets_.parameters[index].tensor);
  hook.key = hook.accumulator->add_post_hook(std::make_unique<GradientHook>(
      [this, index](const at::Tensor& incoming) { on_gradient(index, incoming); },
      options_.optimizer != nullptr));
}

// The only function that chooses how gradients are averaged.
std::unique_ptr<GradientPlacement> Reducer::make_placement(
    std::shared_ptr<CommunicationHook> hook) {
  const bool divides = options_.optimizer != nullptr && group_->world_size() > 1;
  const bool is_wide =
      steps_.has_shards() && std::ranges::any_of(buckets_.parameters, [](const auto& parameter) {
        return is_16_bit(parameter.tensor.scalar_type());
      });
  BucketLimits limits = options_.buckets;
  if (hook || is_wide) {
    limits.alone_bytes = std::numeric_limits<std::size_t>::max();
  } else if (large_need_no_copy_) {
    limits.alone_bytes = std::min(limits.alone_bytes, kAloneBytes);
  }
  if (hook) {
    check(!steps_.has_shards(),
          "{}: communication hook {}: with logical shards gradients are sent uncompressed, "
          "so no hook can be used",
          group_->self(), hook->name());
    check(!divides,
          "{}: communication hook {}: a hook needs all gradients on every rank, but "
          "fully_shard with stage 2 or 3 gives each rank only a part; take stage 1",
          group_->self(), hook->name());
    return std::make_unique<HookedPlacement>(*group_, buckets_, limits, std::move(hook));
  }
  if (!divides && !steps_.has_shards())
    return std::make_unique<GradientPlacement>(*group_, buckets_, limits);
  if (!divides)
    return std::make_unique<LogicalShardPlacement<GradientPlacement>>(*group_, buckets_, limits);
  optim::Optimizer& optimizer = *options_.optimizer;
  if (!steps_.has_shards()) {
    return std::make_unique<DividedPlacement>(*group_, buckets_, optimizer, limits,
                                              DividedPlacement::kSlots);
  }
  return std::make_unique<LogicalShardPlacement<DividedPlacement>>(
      *group_, buckets_, optimizer, limits, std::numeric_limits<std::size_t>::max());
}

void Reducer::set_hook(std::shared_ptr<CommunicationHook> hook) {
  const auto names = all_gather_object(*group_, hook ? hook->name() : "none");
  const auto self = static_cast<std::size_t>(group_->rank());
  check(std::all_of(names.begin(), names.end(), [&](const auto& n) { return n == names[self]; }),
        "{}: the ranks chose different communication hooks: {}", group_->self(),
        fmt::join(names, ", "));
  const bool is_hook = hook != nullptr;
  auto placement = make_placement(std::move(hook));
  forget_plan();
  placement_ = std::move(placement);
  has_hook_ = is_hook;
}

void Reducer::require_own_hook(const optim::Metadata& words) const {
  optim::require_same_words(words, {{"name", placement_->hook_name()}}, "communication hook");
}

HookState Reducer::hook_state() const { return placement_->hook_state(); }

void Reducer::set_hook_state(HookState state) {
  require_own_hook(state.words);
  forget_plan();
  placement_->set_hook_state(std::move(state));
}

// Collective; called at the end of a backward pass or, if the placement plans_before_pass(), before
// one.
void Reducer::plan() {
  require_same_parameters(*group_, buckets_.parameters);
  auto plans = placement_->plan(order_);
  const bool is_apart = plans.empty() || plans.back().is_alone ||
                        plans.back().layout.type() != at::kFloat ||
                        !placement_->shares_bucket_with_report();
  if (is_apart) plans.emplace_back();
  const std::int64_t offset = plans.back().layout.append(monitor_.size());
  buckets_.plan(std::move(plans));
  placement_->make_memory();
  monitor_.set_place(buckets_.all.back().flat.narrow(0, offset, monitor_.size()));
  buckets_.is_planned = true;
  if (placement_->plans_before_pass()) return;
  for (Gradient& gradient : buckets_.gradients) {
    if (gradient.is_trained && gradient.is_ready) gradient.store({});
  }
  for (std::size_t i = 0; i < buckets_.gradients.size(); ++i) {
    const Gradient& gradient = buckets_.gradients[i];
    if (gradient.is_trained && gradient.is_ready) monitor_.note_gradient(i);
  }
}

void Reducer::forget_plan() {
  placement_->forget_plan();
  buckets_.forget_plan();
}

void Reducer::before_forward(std::int64_t samples) {
  if (torch::autograd::get_current_graph_task_exec_info() != nullptr) return;
  if (in_backward_) forget_failed_pass();
  follow_requirements();
  if (placement_->plans_before_pass() && !buckets_.is_planned) plan();
  if (steps_.has_shards() && steps_.begins_step() && at::GradMode::is_enabled()) {
    require_used_gradients();
    forget_gradients();
  }
  saw_forward_ = true;
  counter_.begin_forward(samples, at::GradMode::is_enabled());
}

void Reducer::forget_failed_pass() {
  in_backward_ = false;
  turns_->forget(this);
  try {
    for (Bucket& bucket : buckets_.all) {
      if (const auto work = std::exchange(bucket.work, nullptr)) work->wait();
    }
    // This call matches no bucket. So a rank whose pass continued is detected even if its next
    // bucket is as large as the first bucket of the next pass on this rank.
    all_reduce_value(*group_, std::uint8_t{1}, ReduceOp::kMin);
  } catch (const Error& error) {
    throw error.reworded(fmt::format(
        "{}: an exception ended the last backward pass on this rank, and the ranks could not "
        "continue together; it must occur on every rank, or end this process: {}",
        group_->self(), error.what()));
  }
  steps_.forget();
  monitor_.begin_step();
  for (Gradient& gradient : buckets_.gradients) {
    gradient.is_used = false;
    gradient.stand_in = at::Tensor();
  }
  forget_gradients();
}

// With logical shards the first pass of a step replaces the gradients. Those of the last step must
// not be lost before an optimizer has used them or the program has dropped them.
void Reducer::require_used_gradients() const {
  if (averaged_version_ != version_of_parameters() || !placement_->has_gradients()) return;
  fail(ErrorCode::kInvalid,
       "{}: with logical shards this forward pass would drop the averaged gradients of the last "
       "backward pass, which no optimizer has used: call zero_grad() after each step. If a step "
       "has several losses, like the step of a GAN's discriminator, call backward() once, on their "
       "sum",
       group_->self());
}

void Reducer::forget_gradients() {
  placement_->forget();
  buckets_.drop_gradients();
}

// ---- during a pass

void Reducer::on_gradient(std::size_t index, const at::Tensor& incoming) {
  if (!incoming.defined()) return;  // from a part of the graph that did not use the parameter
  Gradient& gradient = buckets_.gradients[index];
  gradient.is_used = true;
  if (!steps_.collects()) return;
  if (!in_backward_) begin_backward();
  const bool is_planned = buckets_.is_planned;
  if (!is_planned) {
    if (gradient.is_ready) std::erase(order_, index);
    order_.push_back(index);
  }
  if (gradient.is_ready) expect_another(index);
  if (is_planned && placement_->make_room(gradient.bucket)) gradient.store(incoming);
  streams_.note();
  gradient.is_ready = true;
  if (is_planned || !communicates_) monitor_.note_gradient(index);
  if (!is_planned || gradient.is_late) return;
  --buckets_.all[gradient.bucket].missing;
  if (turns_->has_turn(this)) launch_complete_buckets();
}

void Reducer::begin_backward() {
  check(saw_forward_,
        "{}: a backward pass reached the parameters, but the forward pass did not run through "
        "DistributedDataParallel: call model->forward(x), or model(x), of the wrapper, not of the "
        "module that was given to it",
        group_->self());
  steps_.require_position();
  begin_pass();
  at_end_of_backward([this] { end_backward(); });
}

void Reducer::begin_pass() {
  if (steps_.averages()) placement_->verify_hook_before_pass(num_steps_);
  in_backward_ = true;
  order_.clear();
  buckets_.begin_pass();
  streams_.clear();
  placement_->begin_pass();
  if (communicates_ && steps_.averages())
    turns_->enter(this, [this] { launch_complete_buckets(); });
}

void Reducer::pass_without_inputs(bool begins_step) {
  if (in_backward_) forget_failed_pass();
  follow_requirements();
  if (placement_->plans_before_pass() && !buckets_.is_planned) plan();
  if (begins_step) placement_->forget();
  // Gradients may hold the average of an earlier pass of the step. The mean over all ranks must
  // include this rank's copy of that average; a mean over only the ranks with inputs must not.
  if (begins_step || steps_.divisor() != group_->world_size()) buckets_.drop_gradients();
  const bool synchronized = synchronizes();
  const auto end = [&] {
    has_inputs_ = true;
    set_synchronize(synchronized);
  };
  set_synchronize(true);
  has_inputs_ = false;
  try {
    begin_pass();
    end_backward();
  } catch (...) {
    end();
    throw;
  }
  end();
}

void Reducer::set_divisor(const UnevenInputs::Others& others) {
  steps_.set_divisor(others.divisor);
  all_have_inputs_ = others.num_active == group_->world_size();
}

// Called when a parameter that already has a gradient from this pass gets another one.
void Reducer::expect_another(std::size_t index) {
  Gradient& gradient = buckets_.gradients[index];
  if (gradient.is_late) return;
  check(!buckets_.is_planned || gradient.bucket >= buckets_.next,
        "{}: parameter {} got another gradient while its first one of this pass was being "
        "averaged. A parameter that several parts under activation_checkpoint() share must be "
        "shared from the "
        "first pass on. After a pass that an exception ended, the next must begin with "
        "DistributedDataParallel's forward()",
        group_->self(), buckets_.parameters[index].name);
  gradient.is_late = true;
  if (buckets_.is_planned) ++buckets_.all[gradient.bucket].missing;
}

void Reducer::launch_complete_buckets() {
  while (buckets_.next < buckets_.all.size() && buckets_.all[buckets_.next].missing == 0)
    launch(buckets_.next++);
  if (buckets_.is_planned && buckets_.next == buckets_.all.size()) turns_->pass_on(this);
}

void Reducer::launch(std::size_t index) {
  streams_.join();
  if (index + 1 == buckets_.all.size()) write_report();
  placement_->make_room(index);
  placement_->start(index, buckets_.tensor_to_send(buckets_.all[index]), steps_.divisor());
}

// Called once the last bucket is complete: now the parameters that this rank has used are known.
void Reducer::write_report() {
  std::vector<bool> used;
  for (const Gradient& gradient : buckets_.gradients) used.push_back(gradient.is_used);
  monitor_.write(used, num_steps_, compares_replicas());
}

bool Reducer::compares_replicas() const {
  return all_have_inputs_ && placement_->keeps_replicas_equal();
}

// ---- the end of a pass

// If this function throws, the next forward pass drops this pass.
void Reducer::end_backward() {
  if (options_.require_all_used && has_inputs_) require_all_ready();
  std::chrono::duration<double> waited{};
  const bool averages = steps_.averages();
  // Checks gradients that accumulated under no_sync(), for parameters that this pass did not use.
  for (std::size_t i = 0; averages && i < buckets_.gradients.size(); ++i) {
    const Gradient& gradient = buckets_.gradients[i];
    if (gradient.is_used && !gradient.is_ready) monitor_.note_gradient(i);
  }
  if (communicates_) {
    in_lockstep([this] {
      if (!buckets_.is_planned) plan();
    });
    const auto begin = std::chrono::steady_clock::now();
    averages ? average() : add_shard();
    waited = std::chrono::steady_clock::now() - begin;
  } else {
    monitor_.judge_alone(num_steps_);
  }
  in_backward_ = false;
  steps_.end_pass();
  if (!averages) return;
  placement_->note_hook();
  for (Gradient& gradient : buckets_.gradients) gradient.is_used = false;
  monitor_.begin_step();
  ++num_steps_;
  exposed_seconds_ += waited.count();
  averaged_version_ = version_of_parameters();
  counter_.end_backward(waited.count(), *averaged_version_);
  if (!communicates_) return;
  turns_->end(this, has_inputs_ ? callbacks_.at_end_of_step : std::function<void()>());
}

void Reducer::require_all_ready() {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < buckets_.gradients.size(); ++i) {
    const Gradient& gradient = buckets_.gradients[i];
    if (gradient.is_trained && !gradient.is_ready) names.push_back(buckets_.parameters[i].name);
  }
  if (names.empty()) return;
  const std::string message = fmt::format(
      "the backward pass gave no gradient to: {}. With require_all_used every parameter must take "
      "part in the loss on every rank; freeze the others with set_requires_grad(false)",
      fmt::join(names, ", "));
  group_->abort(message);  // the other ranks wait for a bucket that will not arrive
  fail(ErrorCode::kInvalid, "{}: {}", group_->self(), message);
}

void Reducer::average() {
  placement_->complete([this] { launch_complete_buckets(); });
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    for (std::size_t i = 0; i < buckets_.all.size(); ++i) goes_on |= placement_->finish(i);
  }
  placement_->deliver(monitor_);
  monitor_.read(steps_.divisor(), num_steps_, compares_replicas());
}

void Reducer::add_shard() {
  placement_->complete([] {});
  monitor_.clear();
  placement_->add_shard();
  for (Gradient& gradient : buckets_.gradients) gradient.stand_in = at::Tensor();
  buckets_.drop_gradients();
}

// Returns a number that changes with each step of an optimizer. LibTorch does not count the writes
// of its own optimizers, so the first bytes of each parameter are hashed too, unless an optimizer
// divides the gradients: the parameters' memory may then be on another host.
std::uint64_t Reducer::version_of_parameters() const {
  constexpr std::size_t kBeginning = 64;  // bytes
  const bool may_read = device_.is_cpu() && options_.optimizer == nullptr;
  std::uint64_t version = 0;
  for (const Gradient& gradient : buckets_.gradients) {
    const at::Tensor& tensor = gradient.parameter;
    version += tensor._version();
    if (may_read && gradient.is_trained && tensor.numel() > 0) {
      version =
          XXH3_64bits_withSeed(tensor.data_ptr(), std::min(tensor.nbytes(), kBeginning), version);
    }
  }
  return version;
}

double Reducer::take_exposed_seconds() {
  const double for_parameters =
      options_.optimizer != nullptr ? core_of(*options_.optimizer).take_exposed_seconds() : 0;
  return std::exchange(exposed_seconds_, 0.0) + for_parameters;
}

void Reducer::verify() const {
  placement_->verify_hook(num_steps_);
  callbacks_.verify_buffers();
}

}  // namespace paceline
