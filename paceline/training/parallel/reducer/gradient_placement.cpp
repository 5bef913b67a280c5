#include "paceline/training/parallel/reducer/gradient_placement.h"

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/training/device/device_memory.h"
#include "paceline/training/optim/metadata_words.h"
#include "paceline/training/optim/optimizer_core.h"
#include "paceline/training/parallel/reducer/lockstep.h"
#include "paceline/training/tensor/collectives.h"
#include "paceline/training/tensor/tensor_call.h"
#include "paceline/training/tensor/tensor_marks.h"
#include "paceline/training/tensor/tensor_memory.h"
#include "paceline/training/tensor/tensor_view.h"

namespace paceline {

namespace {

std::vector<at::Tensor> tensors_of(const std::vector<NamedParameter>& parameters) {
  std::vector<at::Tensor> tensors;
  for (const auto& parameter : parameters) tensors.push_back(parameter.tensor);
  return tensors;
}

// Returns a dense tensor as one row, in the order of its memory.
at::Tensor as_row(const at::Tensor& dense) { return dense.as_strided({dense.numel()}, {1}); }

std::int64_t bytes_of(const FlatLayout& layout) {
  return layout.count() * static_cast<std::int64_t>(c10::elementSize(layout.type()));
}

std::vector<std::int64_t> rows_of_parts(const FlatLayout& layout, std::int64_t count, int parts) {
  std::vector<std::int64_t> rows;
  for (int part = 0; part < parts; ++part) {
    const std::int64_t begin = std::min(count, part * layout.part_count());
    rows.push_back(std::min(count - begin, layout.part_count()));
  }
  return rows;
}

TensorCall mean_of(Op op, const at::Tensor& input, const ProcessGroup& group,
                   std::int64_t divisor) {
  TensorCall call{.op = op, .reduce_op = ReduceOp::kMean};
  call.input = input;
  if (divisor != group.world_size()) call.divisor = static_cast<std::uint32_t>(divisor);
  return call;
}

// Names in messages, then the words that HookState adds to the hook's own.
constexpr const char* kHook = "communication hook";
constexpr const char* kHookTensor = "the communication hook's tensor";
constexpr const char* kName = "name";
constexpr const char* kOrder = "order";

}  // namespace

// ---- the average for every rank

// Plans buckets in rank 0's order of gradients: first gradients that arrived once, then those that
// arrived several times, then those that did not arrive.
std::vector<BucketPlan> GradientPlacement::plan(std::vector<std::size_t> order) {
  const auto& gradients = buckets_.gradients;
  std::ranges::stable_partition(order, [&](std::size_t i) { return !gradients[i].is_late; });
  for (std::size_t i = gradients.size(); i-- > 0;) {
    if (gradients[i].is_trained && std::ranges::find(order, i) == order.end()) order.push_back(i);
  }
  std::vector<std::int64_t> shared(order.begin(), order.end());
  group_.broadcast(std::span(shared), 0);
  return plan_buckets(tensors_of(buckets_.parameters), {shared.begin(), shared.end()}, limits_);
}

void GradientPlacement::make_memory() {
  for (Bucket& bucket : buckets_.all) {
    const FlatLayout& layout = bucket.plan.layout;
    if (!bucket.plan.is_alone) buckets_.lay_out(bucket, make_flat(layout.count(), layout.type()));
  }
}

at::Tensor GradientPlacement::make_flat(std::int64_t count, at::ScalarType type) const {
  const c10::Device device = buckets_.parameters.front().tensor.device();
  if (device.is_cpu()) return empty_symmetric(group_, {count}, type);
  return zeros_on_device(
      group_, count, type, device, "a gradient bucket",
      "use smaller buckets (BucketLimits::cap_bytes), a smaller batch or activation_checkpoint()");
}

void GradientPlacement::complete(const std::function<void()>& go_on) {
  for (Gradient& gradient : buckets_.gradients) {
    if (gradient.is_trained && !gradient.is_ready) gradient.stand_in_for_missing();
  }
  for (Bucket& bucket : buckets_.all) bucket.missing = 0;
  go_on();
}

void GradientPlacement::start(std::size_t bucket, const at::Tensor& sent, std::int64_t divisor) {
  TensorCall call = mean_of(Op::kAllReduce, sent, group_, divisor);
  call.output = sent;
  in_lockstep([&] { buckets_.all[bucket].work = paceline::start(group_, call); });
}

bool GradientPlacement::finish(std::size_t bucket) {
  const auto work = std::exchange(buckets_.all[bucket].work, nullptr);
  if (!work) return false;
  in_lockstep([&] { work->wait(); });
  take(bucket);
  return buckets_.all[bucket].work != nullptr;
}

void GradientPlacement::take(std::size_t bucket) {
  const at::NoGradGuard no_grad;
  const Bucket& arrived = buckets_.all[bucket];
  if (arrived.wide.defined()) arrived.flat.copy_(arrived.wide);
}

void GradientPlacement::deliver(PassMonitor& monitor) {
  for (std::size_t i = 0; i < buckets_.gradients.size(); ++i) {
    Gradient& gradient = buckets_.gradients[i];
    const at::Tensor average =
        gradient.place.defined() ? gradient.place : std::exchange(gradient.stand_in, {});
    if (gradient.is_trained && !gradient.is_ready && monitor.is_used(i))
      own_gradient(gradient.parameter) = average;
  }
}

bool GradientPlacement::has_gradients() const {
  const at::NoGradGuard no_grad;
  return std::ranges::any_of(buckets_.gradients, [](const Gradient& gradient) {
    const at::Tensor& own = own_gradient(gradient.parameter);
    return gradient.is_trained && own.defined() && own.any().item<bool>();
  });
}

// ---- each rank's part

// Plans the units in which at least one parameter requires a gradient.
std::vector<BucketPlan> DividedPlacement::plan(std::vector<std::size_t> /*order*/) {
  const auto numbers = numbers_by_tensor(tensors_of(buckets_.parameters));
  const auto& of_optimizer = optimizer_.parameters();
  std::vector<BucketPlan> plans;
  units_.clear();
  for (auto& unit : core_of(optimizer_).gradient_units()) {
    BucketPlan plan{unit.layout, {}, false};
    bool is_trained = false;
    for (const std::size_t i : unit.parameters) {
      const auto found = numbers.find(of_optimizer[i].unsafeGetTensorImpl());
      check(found != numbers.end(),
            "{}: parameter {} of the optimizer, which divides gradients among the ranks, is "
            "not one of the module's",
            group_.self(), i);
      plan.parameters.push_back(found->second);
      is_trained |= buckets_.gradients[found->second].is_trained;
    }
    if (!is_trained) continue;
    plan.is_alone = plan.parameters.size() == 1 &&
                    of_optimizer[unit.parameters.front()].nbytes() >= limits_.alone_bytes;
    plans.push_back(std::move(plan));
    units_.emplace_back().of_optimizer = std::move(unit);
  }
  const auto known = numbers_by_tensor(of_optimizer);
  for (std::size_t i = 0; i < buckets_.gradients.size(); ++i) {
    const Gradient& gradient = buckets_.gradients[i];
    check(!gradient.is_trained || known.contains(gradient.parameter.unsafeGetTensorImpl()),
          "{}: parameter {} requires a gradient, but the optimizer that divides gradients "
          "among the ranks does not have it",
          group_.self(), buckets_.parameters[i].name);
  }
  return plans;
}

at::Tensor DividedPlacement::part_of(const Unit& unit) {
  return core_of(optimizer_).gradient_part(unit.of_optimizer.number);
}

void DividedPlacement::make_memory() {
  Bucket& report = buckets_.all.back();
  buckets_.lay_out(report, make_flat(report.plan.layout.count(), report.plan.layout.type()));
  const std::size_t count = std::min(units_.size(), most_slots_);
  std::vector<std::int64_t> bytes(count);
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const BucketPlan& plan = buckets_.all[i].plan;
    if (!plan.is_alone) bytes[i % count] = std::max(bytes[i % count], bytes_of(plan.layout));
  }
  slots_.clear();
  for (const std::int64_t size : bytes)
    slots_.push_back(size > 0 ? make_flat(size, at::kByte) : at::Tensor());
  for (std::size_t i = 0; i < units_.size(); ++i) {
    Bucket& bucket = buckets_.all[i];
    if (bucket.plan.is_alone) continue;
    const FlatLayout& layout = bucket.plan.layout;
    buckets_.lay_out(bucket, slots_[i % count].narrow(0, 0, bytes_of(layout)).view(layout.type()));
  }
}

void DividedPlacement::begin_pass() {
  for (Unit& unit : units_) unit.has_room = false;
}

bool DividedPlacement::make_room(std::size_t bucket) {
  if (bucket >= units_.size() || units_[bucket].has_room) return true;
  if (bucket >= buckets_.next + slots_.size()) return false;
  if (bucket >= slots_.size()) finish(bucket - slots_.size());
  units_[bucket].has_room = true;
  for (const std::size_t i : buckets_.all[bucket].plan.parameters) {
    Gradient& gradient = buckets_.gradients[i];
    if (!gradient.is_trained && gradient.place.defined()) gradient.place.zero_();
    if (gradient.is_ready) gradient.store({});
  }
  return true;
}

// Completes the buckets in order, as memory becomes free.
void DividedPlacement::complete(const std::function<void()>& go_on) {
  for (std::size_t i = buckets_.next; i < units_.size(); ++i) {
    make_room(i);
    for (const std::size_t n : buckets_.all[i].plan.parameters) {
      Gradient& gradient = buckets_.gradients[n];
      if (gradient.is_trained && !gradient.is_ready) gradient.stand_in_for_missing();
    }
    buckets_.all[i].missing = 0;
    go_on();
  }
  go_on();
}

void DividedPlacement::start(std::size_t bucket, const at::Tensor& sent, std::int64_t divisor) {
  if (bucket >= units_.size()) return GradientPlacement::start(bucket, sent, divisor);
  Unit& unit = units_[bucket];
  const BucketPlan& plan = buckets_.all[bucket].plan;
  TensorCall call = mean_of(Op::kReduceScatter, sent, group_, divisor);
  std::int64_t own_count = plan.layout.part_count();
  if (plan.is_alone) {
    call.op = Op::kReduceScatterV;
    call.input = as_row(sent.detach());
    call.counts = rows_of_parts(plan.layout, call.input.numel(), group_.world_size());
    own_count = call.counts[static_cast<std::size_t>(group_.rank())];
  }
  unit.adds = std::ranges::any_of(unit.of_optimizer.parameters, [this](std::size_t i) {
    return core_of(optimizer_).has_gradient(i);
  });
  if (unit.adds || call.input.scalar_type() != at::kFloat || buckets_.all[bucket].wide.defined())
    unit.received = at::empty({own_count}, call.input.options());
  call.output = unit.received.defined() ? unit.received : part_of(unit).narrow(0, 0, own_count);
  in_lockstep([&] { buckets_.all[bucket].work = paceline::start(group_, call); });
  for (const std::size_t i : plan.parameters) {
    Gradient& gradient = buckets_.gradients[i];
    gradient.stand_in = at::Tensor();
    if (gradient.is_trained) own_gradient(gradient.parameter) = at::Tensor();
  }
}

void DividedPlacement::take(std::size_t bucket) {
  if (bucket >= units_.size()) return;
  const at::NoGradGuard no_grad;
  at::Tensor received = std::exchange(units_[bucket].received, {});
  if (!received.defined()) return;
  // Sums of logical shards are float32; their average is rounded as in every other stage.
  const Bucket& arrived = buckets_.all[bucket];
  if (arrived.wide.defined()) received = received.to(arrived.plan.layout.type());
  const at::Tensor own = part_of(units_[bucket]).narrow(0, 0, received.numel());
  units_[bucket].adds ? own.add_(received) : own.copy_(received);
}

// Tells the optimizer which parameters have a gradient on any rank. On a device the host waits for
// the report, so it is read only for parameters that this rank has not used.
void DividedPlacement::deliver(PassMonitor& monitor) {
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const auto& numbers = units_[i].of_optimizer.parameters;
    for (std::size_t n = 0; n < numbers.size(); ++n) {
      const std::size_t parameter = buckets_.all[i].plan.parameters[n];
      if (buckets_.gradients[parameter].is_used || monitor.is_used(parameter))
        core_of(optimizer_).set_has_gradient(numbers[n]);
    }
  }
}

bool DividedPlacement::has_gradients() const {
  const auto is_there = [this](std::size_t i) { return core_of(optimizer_).has_gradient(i); };
  return std::ranges::any_of(units_, [&](const Unit& unit) {
    return std::ranges::any_of(unit.of_optimizer.parameters, is_there);
  });
}

void DividedPlacement::forget() {
  for (Unit& unit : units_) unit.received = at::Tensor();
  optimizer_.zero_grad();
}

// ---- a communication hook's average

// A hook that continues from a saved state gets the same buckets as when the state was saved.
std::vector<BucketPlan> HookedPlacement::plan(std::vector<std::size_t> order) {
  auto kept = kept_order();
  return GradientPlacement::plan(std::move(kept.empty() ? order : kept));
}

void HookedPlacement::make_memory() {
  GradientPlacement::make_memory();
  rounds_.assign(buckets_.all.size(), 0);
  std::vector<GradientBucket> views;
  for (std::size_t i = 0; i + 1 < buckets_.all.size(); ++i) views.push_back(view_of(i));
  hook_->prepare(group_, views);
  if (kept_) restore_kept(views);
  kept_.reset();
}

void HookedPlacement::restore_kept(const std::vector<GradientBucket>& views) {
  std::map<std::string, at::Tensor> before;
  for (const auto* tensors : {&kept_->shared, &kept_->owed})
    before.insert(tensors->begin(), tensors->end());
  const at::NoGradGuard no_grad;
  for (const auto& view : views) {
    for (const auto& kept : hook_->kept(view)) {
      const auto found = before.find(name_of(view, kept));
      if (found == before.end()) continue;
      check(found->second.sizes() == kept.tensor.sizes(),
            "{}: communication hook {}: {} has another shape than the one that was kept",
            group_.self(), hook_->name(), found->first);
      kept.tensor.copy_(found->second);
    }
  }
}

void HookedPlacement::forget_plan() {
  if (buckets_.is_planned) kept_ = hook_state();
}

void HookedPlacement::start(std::size_t bucket, const at::Tensor& sent, std::int64_t divisor) {
  if (buckets_.all[bucket].plan.parameters.empty())
    return GradientPlacement::start(bucket, sent, divisor);
  rounds_[bucket] = 0;
  start_round(bucket);
}

void HookedPlacement::take(std::size_t bucket) {
  if (buckets_.all[bucket].plan.parameters.empty()) return;
  ++rounds_[bucket];
  start_round(bucket);
}

// Other ranks would not learn of an error inside the hook, so it aborts the group.
void HookedPlacement::start_round(std::size_t bucket) {
  try {
    buckets_.all[bucket].work = hook_->start_round(group_, view_of(bucket), rounds_[bucket]);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kPeerLost || error.code() == ErrorCode::kAborted)
      throw with_advice(error);
    fail_in_hook(bucket, error.what());
  } catch (...) {
    fail_in_hook(bucket, describe_current_exception().c_str());
  }
}

void HookedPlacement::fail_in_hook(std::size_t bucket, const char* why) {
  const std::string message =
      fmt::format("communication hook {} failed in round {} of bucket {}: {}", hook_->name(),
                  rounds_[bucket], bucket, why);
  group_.abort(message);
  fail(ErrorCode::kInvalid, "{}: {}", group_.self(), message);
}

GradientBucket HookedPlacement::view_of(std::size_t bucket) const {
  const Bucket& own = buckets_.all[bucket];
  GradientBucket view{bucket, bucket + 2 == buckets_.all.size(), own.flat, {}};
  for (const std::size_t i : own.plan.parameters)
    view.gradients.push_back(buckets_.gradients[i].place);
  return view;
}

std::string HookedPlacement::name_of(const GradientBucket& bucket,
                                     const CommunicationHook::KeptTensor& kept) const {
  const std::size_t parameter = buckets_.all[bucket.index].plan.parameters.at(kept.gradient);
  return kept.kind + "." + buckets_.parameters[parameter].name;
}

HookState HookedPlacement::hook_state() const {
  if (!buckets_.is_planned && kept_) return *kept_;
  HookState state;
  state.words = hook_->progress();
  state.words[kName] = hook_->name();
  if (!buckets_.is_planned) return state;
  std::vector<std::int64_t> order;
  for (std::size_t i = 0; i + 1 < buckets_.all.size(); ++i) {
    const auto& parameters = buckets_.all[i].plan.parameters;
    order.insert(order.end(), parameters.begin(), parameters.end());
    const GradientBucket view = view_of(i);
    for (const auto& kept : hook_->kept(view))
      (kept.is_residual ? state.owed : state.shared).emplace_back(name_of(view, kept), kept.tensor);
  }
  state.words[kOrder] = optim::to_word(order);
  return state;
}

void HookedPlacement::set_hook_state(HookState state) {
  hook_->set_progress(state.words);
  tensors_.forget();
  kept_ = std::move(state);
}

// Returns the saved order of gradients; empty if the hook was saved with other gradients than the
// current ones.
std::vector<std::size_t> HookedPlacement::kept_order() const {
  if (!kept_ || !kept_->words.contains(kOrder)) return {};
  std::vector<std::size_t> order;
  std::vector<bool> is_kept(buckets_.gradients.size());
  for (const double index : optim::numbers_in(kept_->words, kOrder, kHook)) {
    if (!(index >= 0 && index < static_cast<double>(is_kept.size()))) return {};
    order.push_back(static_cast<std::size_t>(index));
    if (is_kept[order.back()]) return {};
    is_kept[order.back()] = true;
  }
  for (std::size_t i = 0; i < is_kept.size(); ++i) {
    if (is_kept[i] != buckets_.gradients[i].is_trained) return {};
  }
  return order;
}

void HookedPlacement::note_hook() {
  const HookState state = hook_state();
  KeptTensors::Named all = state.shared;
  all.insert(all.end(), state.owed.begin(), state.owed.end());
  tensors_.note(all);
}

void HookedPlacement::verify_hook(std::int64_t step) const {
  tensors_.verify(kHookTensor, group_, step);
}

void HookedPlacement::verify_hook_before_pass(std::int64_t step) {
  tensors_.verify_before_pass(kHookTensor, group_, step);
}

// ---- logical shards

template <class Kind>
void LogicalShardPlacement<Kind>::make_memory() {
  Kind::make_memory();
  sums_ = std::vector<ShardSum>(this->buckets_.all.size());
  for (Bucket& bucket : this->buckets_.all) {
    const FlatLayout& layout = bucket.plan.layout;
    if (is_16_bit(layout.type())) bucket.wide = this->make_flat(layout.count(), at::kFloat);
  }
}

template <class Kind>
void LogicalShardPlacement<Kind>::start(std::size_t bucket, const at::Tensor& sent,
                                        std::int64_t divisor) {
  sums_[bucket].finish(sent);
  Kind::start(bucket, sent, divisor);
}

template <class Kind>
void LogicalShardPlacement<Kind>::add_shard() {
  const at::NoGradGuard no_grad;
  const Buckets& buckets = this->buckets_;
  for (std::size_t i = 0; i < buckets.all.size(); ++i) {
    const Bucket& bucket = buckets.all[i];
    if (bucket.plan.parameters.empty()) continue;
    const bool is_wide = bucket.wide.defined();
    sums_[i].add(is_wide ? bucket.flat.to(at::kFloat) : buckets.content(bucket),
                 is_wide || bucket.plan.is_alone);
  }
}

template <class Kind>
void LogicalShardPlacement<Kind>::forget() {
  for (ShardSum& sum : sums_) sum.clear();
  Kind::forget();
}

template class LogicalShardPlacement<GradientPlacement>;
template class LogicalShardPlacement<DividedPlacement>;

}  // namespace paceline
