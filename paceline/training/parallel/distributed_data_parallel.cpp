#include <algorithm>
#include <cstring>
#include <optional>

#include <ATen/ATen.h>

#include "paceline/engine/collectives/group/engine_group.h"
#include "paceline/engine/collectives/group/object_collectives.h"
#include "paceline/engine/core/check.h"
#include "paceline/training/optim/optimizer_core.h"
#include "paceline/training/optim/parameters/parameter_home.h"
#include "paceline/training/parallel/activation_checkpoint.h"
#include "paceline/training/parallel/backward_end.h"
#include "paceline/training/parallel/data_parallel_state.h"
#include "paceline/training/parallel/reducer/lockstep.h"
#include "paceline/training/parallel/sync_batch_norm.h"
#include "paceline/training/tensor/collectives.h"
#include "paceline/training/tensor/tensor_marks.h"
#include "paceline/training/tensor/tensor_view.h"

namespace paceline {

void ShardBuffers::begin_forward(std::int64_t index) {
  if (index == 0) {
    if (is_unfinished_) restore(at_start_);  // the previous step failed
    at_start_ = copy();
    is_unfinished_ = true;
  } else {
    restore(at_start_);
  }
}

void ShardBuffers::end_forward(std::int64_t index) {
  if (index == 0) after_first_ = copy();
}

void ShardBuffers::end_step() {
  restore(after_first_);
  is_unfinished_ = false;
}

std::vector<at::Tensor> ShardBuffers::copy() const {
  std::vector<at::Tensor> values;
  for (const auto& buffer : buffers_) values.push_back(buffer.detach().clone());
  return values;
}

// Writes the bytes without LibTorch's operations. Autograd keeps BatchNorm's statistics for a
// backward pass that does not read them, and would reject that pass if it detected the change.
void ShardBuffers::restore(const std::vector<at::Tensor>& values) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (buffers_[i].is_cpu() && buffers_[i].is_contiguous()) {
      std::memcpy(buffers_[i].data_ptr(), values[i].data_ptr(), buffers_[i].nbytes());
    } else {
      buffers_[i].copy_(values[i]);
    }
  }
}

namespace {

constexpr const char* kBuffer = "buffer";

// Returns each parameter once, under its first name.
std::vector<NamedParameter> parameters_of(const torch::nn::Module& module) {
  std::vector<NamedParameter> parameters;
  for (const auto& item : module.named_parameters()) {
    const bool is_known = std::any_of(parameters.begin(), parameters.end(), [&](const auto& known) {
      return known.tensor.is_same(item.value());
    });
    if (!is_known) parameters.push_back({item.key(), item.value()});
  }
  return parameters;
}

// Collective. Throws an error on every rank if one of the ranks cannot train its parameters.
void require_trainable(GroupRef group, const std::vector<NamedParameter>& parameters) {
  std::optional<Error> refusal;
  try {
    const bool trains = std::ranges::any_of(
        parameters, [](const auto& parameter) { return parameter.tensor.requires_grad(); });
    check(trains, "{}: DistributedDataParallel: no parameter of the module requires a gradient",
          group->self());
    one_device_of(parameters, group->rank());
  } catch (const Error& error) {
    refusal = error;
  }
  detail::throw_first_error(group, refusal);
}

bool is_built_once(const at::Tensor& parameter) {
  return parameter.is_cpu() && OneCopy::holds(parameter.data_ptr());
}

}  // namespace

DataParallelState::DataParallelState(std::shared_ptr<torch::nn::Module> module,
                                     std::shared_ptr<ProcessGroup> group,
                                     const DistributedDataParallelOptions& options)
    : module_(std::move(module)),
      group_(std::move(group)),
      options_(options),
      buffers_(module_->buffers()),
      shard_buffers_(buffers_) {
  require_shards_apart();
  name_parameters(*module_);
  for (const auto& item : module_->named_buffers())
    named_buffers_.emplace_back(item.key(), item.value());
  const auto all = parameters_of(*module_);
  if (options_.optimizer == nullptr) require_undivided(*group_, all);
  require_same_parameters(*group_, all);
  require_trainable(group_, all);
  for (const auto& parameter : all) parameters_.push_back(parameter.tensor);
  require_one_copy(all);
  take_model_of(0);
  if (options_.optimizer != nullptr) shard_optimizer(all);
  DistributedDataParallelOptions averaging = options_;
  averaging.check_replicas_every = check_replicas_every();
  if (options_.optimizer != nullptr && !core_of(*options_.optimizer).shards_gradients())
    averaging.optimizer = nullptr;
  reducer_ = std::make_unique<Reducer>(
      group_, all, averaging,
      ReducerCallbacks{
          .at_end_of_step = [this] { end_step(); },
          .verify_buffers =
              [this] { kept_buffers_.verify(kBuffer, *group_, reducer_->num_steps()); }});
}

void DataParallelState::shard_optimizer(const std::vector<NamedParameter>& parameters) {
  const auto& known = options_.optimizer->parameters();
  for (const auto& parameter : parameters) {
    const bool is_known = std::ranges::any_of(
        known, [&](const auto& tensor) { return tensor.is_same(parameter.tensor); });
    check(is_known || !parameter.tensor.requires_grad(),
          "{}: parameter {} requires a gradient, but the optimizer that fully_shard() divides "
          "among the ranks does not have it: add it to the optimizer, or freeze it with "
          "set_requires_grad(false)",
          group_->self(), parameter.name);
  }
  optim::ShardOptions shard = *options_.shard;
  shard.names.clear();
  for (const auto& tensor : known) {
    const auto found = std::ranges::find_if(
        parameters, [&](const auto& parameter) { return parameter.tensor.is_same(tensor); });
    check(found != parameters.end(), "{}: parameter {} of the optimizer is not one of the module's",
          group_->self(), shard.names.size());
    shard.names.push_back(found->name);
  }
  core_of(*options_.optimizer).shard(group_, shard);
}

// Without a sharded optimizer, each rank would take its own step in the same memory.
void DataParallelState::require_one_copy(const std::vector<NamedParameter>& parameters) const {
  if (options_.optimizer != nullptr && options_.shard->node_shared) return;
  for (const auto& parameter : parameters) {
    check(!is_built_once(parameter.tensor),
          "{}: the ranks of this host have one copy of parameter {} (build_once), which needs "
          "fully_shard() with stage 3; build the module on each rank for anything else",
          group_->self(), parameter.name);
  }
}

// SyncBatchNorm normalises over the shards that run at the same time, so its result would depend on
// the number of ranks.
void DataParallelState::require_shards_apart() const {
  if (options_.logical_shards == 0) return;
  for (const auto& item : module_->named_modules()) {
    if (dynamic_cast<const SyncBatchNormImpl*>(item.value().get()) == nullptr) continue;
    fail(ErrorCode::kUnsupported,
         "{}: {} is a SyncBatchNorm, which makes shards depend on each other: use an ordinary "
         "BatchNorm with logical shards",
         group_->self(), item.key());
  }
}

bool DataParallelState::divides_parameters() const {
  return options_.optimizer != nullptr && core_of(*options_.optimizer).divides_parameters();
}

// If the parameters are divided, there are no replicas to compare.
std::int64_t DataParallelState::check_replicas_every() const {
  return divides_parameters() ? 0 : options_.check_replicas_every;
}

void DataParallelState::forget_gradients() {
  if (options_.optimizer != nullptr) options_.optimizer->zero_grad();
}

void DataParallelState::take_model_of(int rank) {
  broadcast_parameters(rank);
  broadcast_buffers(rank);
  buffers_may_differ_ = false;
}

void DataParallelState::broadcast_parameters(int root) {
  if (group_->world_size() == 1) return;
  if (options_.optimizer != nullptr && core_of(*options_.optimizer).shares_parameters()) return;
  const at::NoGradGuard no_grad;
  for (const auto& parameter : parameters_) {
    if (!is_built_once(parameter)) broadcast(*group_, parameter.detach(), root);
  }
}

void DataParallelState::broadcast_buffers(int root) {
  if (group_->world_size() == 1) return;
  const at::NoGradGuard no_grad;
  std::vector<Buffer> bytes;  // buffers in host memory, of any types: sent in one message
  std::vector<std::uint32_t> shapes;
  GivenTensors given;
  for (const auto& buffer : buffers_) {
    if (!buffer.is_cpu()) {
      broadcast(*group_, buffer, root);
      continue;
    }
    const Buffer view = dense_view(buffer);
    bytes.emplace_back(view.data, view.bytes(), Dtype::kUint8);
    shapes.push_back(static_cast<std::uint32_t>(view.dtype));
    shapes.push_back(shape_of(buffer));
    given.all.push_back(buffer);
  }
  if (!bytes.empty()) {
    engine(*group_).run({.op = Op::kBroadcast,
                         .root = root,
                         .lists = BufferLists{{}, bytes},
                         .shape = shape_of_all(shapes),
                         .shapes = &given});
  }
  note_buffers();
}

void DataParallelState::note_buffers() {
  if (options_.check_replicas_every > 0) kept_buffers_.note(named_buffers_);
}

detail::ForwardPass::ForwardPass(DataParallelState& state, std::int64_t samples)
    : state_(state),
      is_shard_(state.reducer_->steps().has_shards() && torch::GradMode::is_enabled()) {
  if (is_in_checkpoint()) {
    fail(ErrorCode::kInvalid,
         "{}: DistributedDataParallel's forward() was called in a part of activation_checkpoint(): "
         "its "
         "beginning communicates, and would do so again in the backward pass; call "
         "activation_checkpoint() on "
         "parts of the module, within the module's own forward()",
         state.group_->self());
  }
  state.kept_buffers_.verify_before_pass(kBuffer, *state.group_, state.reducer_->num_steps());
  state.before_forward(samples);
  if (is_shard_) state.shard_buffers_.begin_forward(state.reducer_->steps().num_done());
}

detail::ForwardPass::~ForwardPass() {
  if (is_shard_) state_.shard_buffers_.end_forward(state_.reducer_->steps().num_done());
  state_.note_buffers();
}

// Called in the first pass only, because it walks through the module.
void DataParallelState::require_known_parameters() const {
  const auto known = numbers_by_tensor(parameters_);
  for (const auto& item : module_->named_parameters()) {
    check(
        !item.value().requires_grad() || known.contains(item.value().unsafeGetTensorImpl()),
        "{}: the module did not have parameter {} when it was wrapped, so its gradients would not "
        "be averaged; change the module (replace_module()), then make its optimizer, and then "
        "call fully_shard() or DistributedDataParallel",
        group_->self(), item.key());
  }
}

void DataParallelState::before_forward(std::int64_t samples) {
  if (options_.optimizer != nullptr) core_of(*options_.optimizer).require_parameters();
  reducer_->before_forward(samples);
  const bool trains = torch::GradMode::is_enabled();
  if (trains && !std::exchange(has_trained_, true)) require_known_parameters();
  int root = 0;
  if (uneven_inputs_ != nullptr) {
    if (!trains) return;
    using Doing = UnevenInputs::Doing;
    const auto others = uneven_inputs_->announce(reducer_->synchronizes() ? Doing::kAveragingPass
                                                                          : Doing::kLocalPass);
    reducer_->set_divisor(others);
    root = others.first_active;
  }
  if (!options_.broadcast_buffers) return;
  const bool begins_step = reducer_->steps().begins_step();
  const bool may_differ = buffers_may_differ_ || uneven_inputs_ != nullptr;
  if (may_differ && (!trains || begins_step)) in_lockstep([&] { broadcast_buffers(root); });
  buffers_may_differ_ = trains;
}

// Within join(), buffers are sent at the beginning of passes instead, because ranks without inputs
// take part in the beginning of a pass.
void DataParallelState::end_step() {
  kept_buffers_.verify_before_pass(kBuffer, *group_, reducer_->num_steps());
  if (reducer_->steps().has_shards()) shard_buffers_.end_step();
  note_buffers();
  if (!options_.broadcast_buffers || uneven_inputs_ != nullptr) return;
  in_lockstep([&] { broadcast_buffers(0); });
  buffers_may_differ_ = false;
}

void DataParallelState::set_uneven_inputs(UnevenInputs* inputs) {
  uneven_inputs_ = inputs;
  const int world_size = group_->world_size();
  reducer_->set_divisor({.num_active = world_size, .divisor = world_size});
}

void DataParallelState::pass_without_inputs(const UnevenInputs::Others& others, bool begins_step) {
  reducer_->set_divisor(others);
  if (options_.broadcast_buffers) in_lockstep([&] { broadcast_buffers(others.first_active); });
  buffers_may_differ_ = true;
  reducer_->pass_without_inputs(begins_step);
}

namespace detail {

std::shared_ptr<DataParallelState> make_state(std::shared_ptr<torch::nn::Module> module,
                                              std::shared_ptr<ProcessGroup> group,
                                              const DistributedDataParallelOptions& options) {
  check(module != nullptr, "DistributedDataParallel: the module is a null pointer");
  return std::make_shared<DataParallelState>(
      std::move(module), require_group(std::move(group), "DistributedDataParallel"), options);
}

Reducer& reducer_of(DataParallelState& state) { return state.reducer(); }

void set_requires_gradient_sync(DataParallelState& state, bool required) {
  state.reducer().set_synchronize(required);
}

void set_hook(DataParallelState& state, std::shared_ptr<CommunicationHook> hook) {
  state.reducer().set_hook(std::move(hook));
}

void forget_gradients(DataParallelState& state) { state.forget_gradients(); }

void note_loss(DataParallelState& state, double loss) { state.reducer().note_loss(loss); }

double step_loss(const DataParallelState& state) { return state.reducer().step_loss(); }

std::shared_ptr<void> no_sync(DataParallelState& state) {
  GradientSync& sync = state.reducer();
  const auto end = [&sync, before = sync.synchronizes()](void*) { sync.set_synchronize(before); };
  sync.set_synchronize(false);
  return {static_cast<void*>(&sync), end};
}

}  // namespace detail

}  // namespace paceline
