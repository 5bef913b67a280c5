#include "paceline/training/optim/optimizer_core.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <mutex>
#include <unordered_map>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/variable.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/dtype_traits.h"
#include "paceline/engine/core/timing.h"
#include "paceline/training/tensor/collectives.h"
#include "paceline/training/tensor/tensor_marks.h"
#include "paceline/training/tensor/tensor_memory.h"
#include "paceline/training/tensor/tensor_view.h"

namespace paceline::optim {
namespace {

constexpr const char* kCure =
    "describe the other ranks with optimizer.set_model_parts({.model = ...}), and pass the "
    "optimizer instead of its parameters (docs/model_parallelism.md)";

}  // namespace

void require_whole_model(const char* caller, const std::vector<at::Tensor>& parameters) {
  const auto found = first_model_share(parameters);
  if (!found) return;
  fail(ErrorCode::kInvalid,
       "{}: parameter {} is in {}: the gradients of this rank are not the whole model's, and their "
       "norm differs from rank to rank; {}",
       caller, found->parameter, found->share.part, kCure);
}

void require_whole_parameters(const char* caller, const std::vector<at::Tensor>& parameters) {
  const auto found = first_model_share(parameters, true);
  if (!found) return;
  fail(ErrorCode::kInvalid,
       "{}: parameter {} is in {}: its norm is not that of the whole parameter; {}", caller,
       found->parameter, found->share.part, kCure);
}

namespace {

constexpr const char* kNumSteps = "num_steps";

// The number of elements that one thread updates at a time.
constexpr std::int64_t kGrain = 32768;

void require_fusable(const at::Tensor& parameter, std::size_t number) {
  const auto type = parameter.scalar_type();
  check((type == at::kFloat || is_16_bit(type)) &&
            (parameter.device().is_cpu() || parameter.device().is_cuda()) &&
            parameter.is_non_overlapping_and_dense(),
        "parameter {} is not a dense float32, bfloat16 or float16 tensor on the CPU or a CUDA "
        "device, which the fused optimizers need",
        number);
}

void require_rate(double learning_rate) {
  check(std::isfinite(learning_rate) && learning_rate >= 0,
        "the learning rate {} is not a number of at least 0", learning_rate);
}

// Returns the checksums of `work(begin, end)` over [first, last), computed in parallel.
template <class Work>
GuardedState::Sums sums_over(std::int64_t first, std::int64_t last, std::int64_t grain,
                             const Work& work) {
  std::mutex mutex;  // guards `sums`
  GuardedState::Sums sums{};
  at::parallel_for(first, last, grain, [&](std::int64_t begin, std::int64_t end) {
    const GuardedState::Sums own = work(begin, end);
    const std::lock_guard lock(mutex);
    GuardedState::merge(sums, own);
  });
  return sums;
}

}  // namespace

OptimizerCore::OptimizerCore(const Optimizer& owner, std::vector<std::string> state_names,
                             bool with_norms)
    : owner_(owner),
      rows_(std::move(state_names)),
      home_(std::make_unique<ParameterHome>(rows_)),
      guard_(rows_, num_steps_),
      norms_(with_norms ? std::make_unique<ParameterNorms>(rows_) : nullptr) {}

void OptimizerCore::add_groups(const std::vector<GroupTensors>& groups) {
  check(!groups.empty(), "an optimizer needs a parameter group");
  check(!home_->group(),
        "a parameter group must be added before shard() or fully_shard(), which divide the "
        "parameters among the ranks");
  const std::size_t num_before = parameters().size();
  std::vector<at::Tensor> all = parameters();
  for (const auto& group : groups) add_to_group(group, all);
  rows_.add({all.begin() + static_cast<std::ptrdiff_t>(num_before), all.end()});
  begin_rows(num_before);  // earlier parameters are still compared with the last step
}

// Appends to `all` each tensor that it does not contain yet: LibTorch's parameters() lists a shared
// tensor under each of its names. If this function throws, the optimizer has not changed.
void OptimizerCore::add_to_group(const GroupTensors& group, std::vector<at::Tensor>& all) {
  require_rate(group.learning_rate);
  const std::size_t number = learning_rates_.size();
  std::unordered_map<const void*, std::size_t> known;
  for (std::size_t i = 0; i < all.size(); ++i)
    known.emplace(all[i].unsafeGetTensorImpl(), group_of_[i]);
  for (const at::Tensor& tensor : group.parameters) {
    const auto [found, is_new] = known.emplace(tensor.unsafeGetTensorImpl(), number);
    check(found->second == number, "a parameter is in group {} and in group {}", found->second,
          number);
    if (!is_new) continue;
    require_fusable(tensor, all.size());
    const c10::Device device = all.empty() ? tensor.device() : all.front().device();
    check(tensor.device() == device,
          "parameter 0 is on {} and parameter {} on {}; an optimizer's parameters must be on one "
          "device",
          device.str(), all.size(), tensor.device().str());
    all.push_back(tensor);
  }
  group_of_.resize(all.size(), number);
  learning_rates_.push_back(group.learning_rate);
}

// Call it after rows were made. Only the first `num_kept` parameters have the values that a step
// wrote.
void OptimizerCore::begin_rows(std::size_t num_kept) {
  num_steps_.resize(parameters().size());
  is_copy_.resize(parameters().size());
  guard_.begin(*home_, num_kept);
  if (norms_) norms_->lay_out(home_->group());
}

void OptimizerCore::shard(std::shared_ptr<ProcessGroup> group, const ShardOptions& options) {
  check(!home_->group() && !has_stepped(),
        "{}: an optimizer can be sharded only once, before its first step", group->self());
  check(options.names.empty() || options.names.size() == parameters().size(),
        "{}: {} names were given for {} parameters", group->self(), options.names.size(),
        parameters().size());
  const bool divides_gradients = options.unit_bytes > 0;
  const auto plan = divides_gradients ? plan_units(parameters(), options.unit_bytes, options.units)
                                      : rows_by_type(parameters());
  if (group->world_size() == 1) return;
  check(
      !options.shard_across_hosts || (options.node_shared && divides_gradients),
      "{}: shard_across_hosts needs one copy per host and units of gradients: set node_shared and "
      "unit_bytes too",
      group->self());
  const at::NoGradGuard no_grad;
  if (divides_gradients) {
    gradient_divider_ = std::make_shared<const DropGradient>(
        [this](std::size_t parameter) { rows_.drop_gradient(parameter); });
    for (std::size_t i = 0; i < parameters().size(); ++i)
      guard_divided_gradient(parameters()[i], i, gradient_divider_);
  }
  rows_.make(plan, {group->world_size(), group->rank(), divides_gradients});
  home_ = make_shared_home(rows_, std::move(group), options);
  begin_rows(0);
  SymmetricTensors::release_unused();  // frees the memory in which the parameters were before
}

std::shared_ptr<void> OptimizerCore::writable_parameters() const {
  return guard_.expect_writes(home_->writable());
}

double OptimizerCore::take_exposed_seconds() {
  return std::exchange(exposed_seconds_, 0.0) + home_->take_fetch_seconds();
}

void OptimizerCore::set_model_parts(const ModelParts& parts) {
  check(!has_stepped(), "set_model_parts() of an optimizer must be called before its first step");
  check(parts.layers || parts.divided.empty(),
        "{} parameters are divided, but ModelParts::layers, the group of the ranks that divide "
        "them, is not set",
        parts.divided.size());
  const auto numbers = numbers_by_tensor(parameters());
  const auto number_of = [&](const at::Tensor& tensor) {
    const auto found = numbers.find(tensor.unsafeGetTensorImpl());
    check(found != numbers.end(), "a part of the model is not one of the optimizer's parameters");
    return found->second;
  };
  parts_ = parts;
  is_copy_.assign(parameters().size(), false);
  for (const at::Tensor& tensor : parts.copies) is_copy_[number_of(tensor)] = true;
  std::vector<std::size_t> divided;
  for (const at::Tensor& tensor : parts.divided) divided.push_back(number_of(tensor));
  std::ranges::sort(divided);
  if (norms_) norms_->divide(std::move(divided), parts.layers);
}

void OptimizerCore::require_model_parts(const char* caller) const {
  if (!parts_.model) require_whole_model(caller, parameters());
}

void OptimizerCore::set_learning_rates(const std::vector<double>& learning_rates) {
  check(learning_rates.size() == learning_rates_.size(),
        "{} learning rates were given for {} groups", learning_rates.size(),
        learning_rates_.size());
  std::ranges::for_each(learning_rates, require_rate);
  learning_rates_ = learning_rates;
}

bool OptimizerCore::has_stepped() const {
  return std::ranges::any_of(num_steps_, [](auto steps) { return steps > 0; });
}

void OptimizerCore::step() try {
  if (before_step_) before_step_();
  home_->require_in_place();
  require_parameters();
  const at::NoGradGuard no_grad;
  const auto gradients = this->gradients();
  if (owner_.take_whole_step(learning_rates_)) {
    for (const OrderedGradient& gradient : gradients) ++num_steps_[gradient.parameter];
    return;
  }
  if (is_on_device()) {
    home_->forget_others();
    step_on_device(gradients);
    expose([&] { home_->after_update(); });
    return count_writes(gradients);
  }
  guard_.verify_unread(gradients);
  if (norms_) {
    if (!parts_.layers) require_whole_parameters(owner_.name(), parameters());
    for (const OrderedGradient& gradient : gradients) measure_norms(gradient);
    expose([&] { norms_->exchange(); });
  }
  expose([&] { home_->before_update(); });
  home_->forget_others();
  for (const OrderedGradient& gradient : gradients) {
    update_parameter(gradient);
    ++num_steps_[gradient.parameter];
  }
  expose([&] { home_->after_update(); });
  count_writes(gradients);
  guard_.remember(gradients);
} catch (const DamagedState& error) {
  if (home_->group()) home_->group()->abort(error.what());  // the others would wait for this rank
  throw;
}

// LibTorch does not detect all writes of a step. Once they are counted, autograd rejects a backward
// pass that needs the old values.
void OptimizerCore::count_writes(const std::vector<OrderedGradient>& gradients) const {
  for (const OrderedGradient& gradient : gradients)
    torch::autograd::impl::bump_version(parameters()[gradient.parameter]);
}

template <class Communicate>
void OptimizerCore::expose(const Communicate& communicate) {
  const auto begin = std::chrono::steady_clock::now();
  communicate();
  exposed_seconds_ += seconds_since(begin);
}

// Calls `visit` with slices of a parameter's elements, and with the gradient as float32. Slices of
// 16-bit tensors are small enough to stay in the cache between the conversions.
template <class Visit>
GuardedState::Sums OptimizerCore::for_slices(const OrderedGradient& gradient, std::int64_t begin,
                                             std::int64_t end, bool writes,
                                             const Visit& visit) const {
  const std::size_t i = gradient.parameter;
  const std::size_t num_states = rows_.state_names().size();
  const bool with_master = rows_.has_master(i);
  const auto type = to_dtype(rows_.row_of(i).type);
  const auto gradient_type = to_dtype(gradient.tensor.scalar_type());
  const bool widens = gradient_type != Dtype::kFloat32;
  const auto element = [](std::byte* first, std::int64_t at, Dtype dtype) {
    return first + static_cast<std::size_t>(at) * size_of(dtype);
  };
  GuardedState::Sums sums{};
  std::array<float, kBlock> widened;
  const std::int64_t longest = with_master || widens ? kBlock : end - begin;
  for (std::int64_t at = begin; at < end; at += longest) {
    const std::int64_t count = std::min(longest, end - at);
    std::array<float*, GuardedState::kMaxStates> state{};
    for (std::size_t name = 0; name < num_states; ++name)
      state[name] = rows_.state_begin(i, name) + at;
    std::byte* const parameter = element(home_->to_write(i), at, type);
    std::byte* const given = element(static_cast<std::byte*>(gradient.tensor.data_ptr()),
                                     at - gradient.first, gradient_type);
    if (widens) widen(gradient_type, given, widened.data(), count);
    float* const values =
        with_master ? rows_.state_begin(i, num_states) + at : reinterpret_cast<float*>(parameter);
    const MasterSums read = with_master ? follow(type, parameter, values, count) : MasterSums();
    GuardedState::Sums own{};
    visit(UpdateSlice{values, widens ? widened.data() : reinterpret_cast<const float*>(given),
                      state.data(), own.data(), count, num_steps_[i] + 1, group_of_[i]});
    if (with_master) {
      const MasterSums written =
          writes ? narrow(type, values, parameter, count)
                 : MasterSums{sum_words(Dtype::kFloat32, values, count), read.parameter};
      own[GuardedState::kValues] = {read.master, written.master, true};
      own[GuardedState::kRounded] = {read.parameter, written.parameter, true};
    }
    GuardedState::merge(sums, own);
  }
  return sums;
}

// Computes the norms of this rank's elements.
void OptimizerCore::measure_norms(const OrderedGradient& gradient) {
  const auto pieces = norms_->own_pieces(gradient.parameter);
  const auto count = static_cast<std::int64_t>(pieces.size());
  const auto measure_some = [&](std::int64_t begin, std::int64_t end) {
    GuardedState::Sums sums{};
    for (std::int64_t at = begin; at < end; ++at) {
      const auto& piece = pieces[static_cast<std::size_t>(at)];
      const auto more =
          for_slices(gradient, piece.begin, piece.end, false,
                     [&](const UpdateSlice& slice) { norms_->set(piece, owner_.measure(slice)); });
      GuardedState::merge(sums, more);
    }
    return sums;
  };
  guard_.compare(gradient.parameter, sums_over(0, count, kGrain / kBlock, measure_some));
}

void OptimizerCore::update_parameter(const OrderedGradient& gradient) {
  const auto [first, last] = rows_.own_elements(gradient.parameter);
  if (first >= last) return;
  const NormPair norms = norms_ ? norms_->of(gradient.parameter) : NormPair{};
  const auto update_some = [&](std::int64_t begin, std::int64_t end) {
    return for_slices(gradient, begin, end, true,
                      [&](const UpdateSlice& slice) { owner_.update(slice, norms); });
  };
  guard_.compare(gradient.parameter, sums_over(first, last, kGrain, update_some));
}

NamedTensors OptimizerCore::state() const {
  NamedTensors all;
  for (std::size_t state = 0; state <= rows_.state_names().size(); ++state) {
    std::vector<at::Tensor> flats;
    for (const ParameterRows::Row& row : rows_.rows()) {
      at::Tensor flat = state < row.state.size() ? row.state[state] : at::Tensor();
      if (flat.defined() && shard_group()) flat = all_gather_into_tensor(*shard_group(), flat);
      flats.push_back(flat);
    }
    for (std::size_t i = 0; i < parameters().size(); ++i) {
      const at::Tensor& flat = flats[rows_.row_number(i)];
      if (flat.defined()) all.emplace_back(rows_.state_name(state, i), rows_.whole_state(i, flat));
    }
  }
  all.push_back(num_steps());
  return all;
}

std::pair<std::string, at::Tensor> OptimizerCore::num_steps() const {
  return {kNumSteps, at::tensor(num_steps_, at::kLong)};
}

void OptimizerCore::set_state(const NamedTensors& state) {
  const std::vector<StatePart> own = state_parts();
  check(state.size() == own.size() + 1 && state.back().first == kNumSteps,
        "{}: {} tensors were given as the state of {} parameters, which has {}", owner_.name(),
        state.size(), parameters().size(), own.size() + 1);
  const at::Tensor steps = state.back().second.to(at::kLong).contiguous();
  check(steps.numel() == static_cast<std::int64_t>(num_steps_.size()),
        "{}: {} step counts were given for {} parameters", owner_.name(), steps.numel(),
        num_steps_.size());
  for (std::size_t i = 0; i < own.size(); ++i) {
    check(state[i].first == own[i].name && state[i].second.sizes() == own[i].like.sizes(),
          "{}: the state has {} of {} elements where {} of {} is wanted", owner_.name(),
          state[i].first, state[i].second.numel(), own[i].name, own[i].like.numel());
  }
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < own.size(); ++i) {
    if (own[i].elements.numel() == 0) continue;
    at::Tensor given =
        at::empty_strided(own[i].like.sizes(), own[i].like.strides(), own[i].elements.options());
    given.copy_(state[i].second);
    own[i].elements.copy_(
        given.as_strided({given.numel()}, {1}).narrow(0, own[i].first, own[i].elements.numel()));
  }
  const std::int64_t* const counts = steps.data_ptr<std::int64_t>();
  adopt_state({counts, counts + num_steps_.size()});
}

void OptimizerCore::adopt_state(const std::vector<std::int64_t>& num_steps) {
  check(num_steps.size() == num_steps_.size(), "{}: {} step counts were given for {} parameters",
        owner_.name(), num_steps.size(), num_steps_.size());
  num_steps_ = num_steps;
  for (const at::Tensor& parameter : parameters()) torch::autograd::impl::bump_version(parameter);
  guard_.adopt();
}

std::size_t OptimizerCore::num_gradient_bytes() const {
  std::size_t bytes = 0;
  for (const OrderedGradient& gradient : gradients()) bytes += gradient.tensor.nbytes();
  return bytes;
}

namespace {

// The elements of a 16-bit parameter that this rank updates, and their float32 master.
struct Mastered {
  at::Tensor elements, master;
};

// Copies each element of the parameter that has changed since the last step into the master.
// Loading or averaging weights changes elements outside of steps.
void follow(const Mastered& mastered) {
  const at::Tensor is_kept =
      mastered.master.to(mastered.elements.scalar_type()).eq(mastered.elements);
  mastered.master.copy_(at::where(is_kept, mastered.master, mastered.elements.to(at::kFloat)));
}

}  // namespace

bool OptimizerCore::is_on_device() const {
  return !parameters().empty() && !parameters().front().is_cpu();
}

// Updates this rank's elements of all parameters that have a gradient. Parameters of one group that
// are in the same step are updated together.
void OptimizerCore::step_on_device(const std::vector<OrderedGradient>& gradients) {
  const std::size_t num_states = rows_.state_names().size();
  std::map<std::pair<std::size_t, std::int64_t>, UpdateLists> all;  // by group and step
  std::vector<Mastered> mastered;
  for (const OrderedGradient& gradient : gradients) {
    const std::size_t i = gradient.parameter;
    const std::int64_t step = ++num_steps_[i];
    const auto [first, last] = rows_.own_elements(i);
    if (first >= last) continue;
    UpdateLists& lists = all[{group_of_[i], step}];
    lists.group = group_of_[i];
    lists.step = step;
    const at::Tensor own = home_->elements(i, {first, last});
    if (rows_.has_master(i)) {
      mastered.push_back({own, rows_.own_state(i, num_states)});
      follow(mastered.back());
    }
    lists.parameters.push_back(rows_.has_master(i) ? mastered.back().master : own);
    const at::Tensor given = gradient.tensor.as_strided({gradient.tensor.numel()}, {1});
    lists.gradients.push_back(given.narrow(0, first - gradient.first, last - first).to(at::kFloat));
    for (std::size_t state = 0; state < num_states; ++state)
      lists.states[state].push_back(rows_.own_state(i, state));
  }
  if (norms_) measure_on_device(all);
  for (const auto& [key, lists] : all) owner_.update(lists);
  for (const Mastered& one : mastered) one.elements.copy_(one.master);
}

// Computes the norms that the update rule needs. Only a rank with whole parameters can do this on a
// device; otherwise throws Error(kInvalid).
void OptimizerCore::measure_on_device(
    std::map<std::pair<std::size_t, std::int64_t>, UpdateLists>& all) {
  check(!parts_.layers,
        "{}: this update rule needs the norms of whole parameters, which are not available on a "
        "CUDA device if tensor-parallel layers divide parameters; use adamw",
        owner_.name());
  check(!home_->group(),
        "{}: this update rule needs the norms of whole parameters, which are not available on a "
        "CUDA device if ranks divide the optimizer's state; use adamw, or stage 0 of "
        "fully_shard()",
        owner_.name());
  for (auto& [key, lists] : all) {
    for (const at::Tensor& sums : owner_.measure(lists)) lists.norms.push_back(sums.sqrt());
  }
}

}  // namespace paceline::optim
