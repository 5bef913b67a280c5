#include "paceline/training/optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include <sys/mman.h>

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/optim/divided_parameters.h"
#include "paceline/training/optim/kernels.h"
#include "paceline/training/tensor/collectives.h"
#include "paceline/training/tensor/tensor_marks.h"
#include "paceline/training/tensor/tensor_view.h"

namespace paceline::optim {

namespace {

constexpr const char* kCure =
    "tell the optimizer of the other ranks, optimizer.set_model_parts({.model = ...}), and give it "
    "the optimizer instead of parameters (docs/model_parallelism.md)";

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
constexpr const char* kMaster = "master";

void require_fusable(const at::Tensor& parameter, std::size_t number) {
  const auto type = parameter.scalar_type();
  check((type == at::kFloat || is_16_bit(type)) && parameter.device().is_cpu() &&
            parameter.is_non_overlapping_and_dense(),
        "parameter {} is not a dense float32, bfloat16 or float16 tensor on the CPU, which the "
        "fused optimizers need",
        number);
}

// Zeros that take no memory until they are written: an optimizer is made for a whole model before
// shard() leaves it a part.
at::Tensor untouched_zeros(std::int64_t count) {
  const auto bytes = static_cast<std::size_t>(count) * sizeof(float);
  if (bytes == 0) return at::empty({0}, at::kFloat);
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    throw system_error(fmt::format("{} bytes for the optimizer's state", bytes));
  return at::from_blob(
      memory, {count}, [bytes](void* zeros) { munmap(zeros, bytes); }, at::kFloat);
}

void require_rate(double learning_rate) {
  check(std::isfinite(learning_rate) && learning_rate >= 0,
        "the learning rate {} is not a number of at least 0", learning_rate);
}

}  // namespace

Optimizer::Optimizer(const std::vector<GroupTensors>& groups, std::vector<std::string> state_names,
                     Norms norms)
    : state_names_(std::move(state_names)), norms_(norms) {
  check(!groups.empty(), "an optimizer needs a parameter group");
  for (const auto& group : groups) {
    require_rate(group.learning_rate);
    add_parameters(group.parameters, learning_rates_.size());
    learning_rates_.push_back(group.learning_rate);
  }
  num_steps_.resize(parameters_.size());
  has_gradient_.resize(parameters_.size());
  is_copy_.resize(parameters_.size());
  make_rows(rows_by_type(parameters_));
}

// Adds each tensor once, where it came first: LibTorch's parameters() lists a shared one under each
// of its names. Nothing has changed when this throws.
void Optimizer::add_parameters(const std::vector<at::Tensor>& tensors, std::size_t group) {
  std::unordered_map<const void*, std::size_t> known;
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    known.emplace(parameters_[i].unsafeGetTensorImpl(), group_of_[i]);
  std::vector<at::Tensor> added;
  for (const at::Tensor& tensor : tensors) {
    const auto [found, is_new] = known.emplace(tensor.unsafeGetTensorImpl(), group);
    check(found->second == group, "a parameter is in group {} and in group {}", found->second,
          group);
    if (!is_new) continue;
    require_fusable(tensor, parameters_.size() + added.size());
    added.push_back(tensor);
  }
  parameters_.insert(parameters_.end(), added.begin(), added.end());
  group_of_.resize(parameters_.size(), group);
}

// Rows have another layout afterwards, so the state moves.
void Optimizer::add_group(const GroupTensors& group) {
  check(!group_,
        "a parameter group is added before shard() or fully_shard(), which divide the parameters "
        "among the ranks");
  require_rate(group.learning_rate);
  const std::size_t num_before = parameters_.size();
  add_parameters(group.parameters, learning_rates_.size());
  learning_rates_.push_back(group.learning_rate);
  std::vector<std::vector<at::Tensor>> states(num_before);
  for (std::size_t i = 0; i < num_before; ++i) {
    for (std::size_t name = 0; name < num_states(row_of(i)); ++name)
      states[i].push_back(own_state(i, name));
  }
  const auto sums = sums_;
  const auto marks = *marks_;
  num_steps_.resize(parameters_.size());
  has_gradient_.resize(parameters_.size());
  is_copy_.resize(parameters_.size());
  make_rows(rows_by_type(parameters_));
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < num_before; ++i) {
    for (std::size_t name = 0; name < states[i].size(); ++name)
      own_state(i, name).copy_(states[i][name]);
    sums_[i] = sums[i];  // a word that has changed since the last step is still found
    (*marks_)[i] = marks[i];
  }
}

void Optimizer::make_rows(const std::vector<std::vector<std::size_t>>& plan) {
  places_.resize(parameters_.size());
  rows_.clear();
  for (const auto& numbers : plan) {
    Row row{.type = parameters_[numbers.front()].scalar_type(), .parameters = numbers};
    for (const std::size_t i : numbers) {
      places_[i] = {rows_.size(), row.tensors.size()};
      row.tensors.push_back(parameters_[i]);
    }
    rows_.push_back(std::move(row));
  }
  allocate_state();
}

// For as many ranks as there are now.
void Optimizer::allocate_state() {
  for (Row& row : rows_) {
    row.layout = FlatLayout(row.tensors, group_ ? group_->world_size() : 1,
                            shards_gradients_ ? FlatLayout::kBlock : 0);
    const std::size_t num_states = state_names_.size() + (is_16_bit(row.type) ? 1 : 0);
    row.state.clear();
    for (std::size_t name = 0; name < num_states; ++name)
      row.state.push_back(untouched_zeros(row.layout.part_count()));
  }
  sums_.assign(parameters_.size(), {});
  other_sums_.assign(parameters_.size(), 0);
  marks_->assign(parameters_.size(), {});
  if (norms_ == Norms::kPerParameter) make_pieces();
}

void Optimizer::make_pieces() {
  const auto num_parts = static_cast<std::size_t>(group_ ? group_->world_size() : 1);
  std::vector<std::size_t> used(num_parts);
  std::vector<std::vector<std::size_t>> parts(parameters_.size());
  pieces_.assign(parameters_.size(), {});
  for (const Row& row : rows_) {
    for (const std::size_t i : row.parameters) {
      const std::int64_t offset = row.layout.offset(places_[i].index);
      const std::int64_t end = offset + parameters_[i].numel();
      for (std::int64_t at = offset; at < end;) {
        const std::int64_t block = row.layout.block();
        const std::int64_t next = std::min(end, (at / block + 1) * block);
        const auto part = static_cast<std::size_t>(at / row.layout.part_count());
        pieces_[i].push_back({at - offset, next - offset, used[part]++});
        parts[i].push_back(part);
        at = next;
      }
    }
  }
  slots_a_part_ = std::ranges::max(used);
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    for (std::size_t piece = 0; piece < pieces_[i].size(); ++piece)
      pieces_[i][piece].slot += parts[i][piece] * slots_a_part_;
  }
  const auto slots = static_cast<std::int64_t>(num_parts * slots_a_part_);
  norm_sums_ = group_ ? empty_symmetric(*group_, {slots, 2}, at::kDouble)
                      : at::zeros({slots, 2}, at::kDouble);
}

void Optimizer::set_model_parts(const ModelParts& parts) {
  check(!has_stepped(), "an optimizer is told of the model's parts before its first step");
  check(parts.layers || parts.divided.empty(),
        "{} parameters are divided, and no group has the rest of them", parts.divided.size());
  std::unordered_map<const void*, std::size_t> numbers;
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    numbers.emplace(parameters_[i].unsafeGetTensorImpl(), i);
  const auto number_of = [&](const at::Tensor& tensor) {
    const auto found = numbers.find(tensor.unsafeGetTensorImpl());
    check(found != numbers.end(), "a part of the model is not one of the optimizer's parameters");
    return found->second;
  };
  parts_ = parts;
  divided_.clear();
  is_copy_.assign(parameters_.size(), false);
  for (const at::Tensor& tensor : parts.copies) is_copy_[number_of(tensor)] = true;
  for (const at::Tensor& tensor : parts.divided) divided_.push_back(number_of(tensor));
  std::ranges::sort(divided_);
  divided_norms_.assign(2 * divided_.size(), 0.0);
}

void Optimizer::require_model_parts(const char* caller) const {
  if (!parts_.model) require_whole_model(caller, parameters_);
}

void Optimizer::set_learning_rate(double learning_rate) {
  require_rate(learning_rate);
  std::ranges::fill(learning_rates_, learning_rate);
}

void Optimizer::set_learning_rate(std::size_t group, double learning_rate) {
  require_rate(learning_rate);
  learning_rates_.at(group) = learning_rate;
}

void Optimizer::set_learning_rates(const std::vector<double>& learning_rates) {
  check(learning_rates.size() == num_groups(), "{} learning rates were given for {} groups",
        learning_rates.size(), num_groups());
  std::ranges::for_each(learning_rates, require_rate);
  learning_rates_ = learning_rates;
}

bool Optimizer::has_stepped() const {
  return std::any_of(num_steps_.begin(), num_steps_.end(), [](auto steps) { return steps > 0; });
}

bool Optimizer::has_master(std::size_t parameter) const {
  return is_16_bit(row_of(parameter).type);
}

std::int64_t Optimizer::own_begin(const Row& row) const {
  return group_ ? row.layout.part_count() * group_->rank() : 0;
}

std::int64_t Optimizer::state_offset(std::size_t parameter) const {
  const Row& row = row_of(parameter);
  return row.layout.offset(places_[parameter].index) - own_begin(row);
}

// Of a parameter, [first, last) in the order of its memory; none when last <= first.
std::pair<std::int64_t, std::int64_t> Optimizer::elements_in(std::size_t parameter,
                                                             int part) const {
  const FlatLayout& layout = row_of(parameter).layout;
  const std::int64_t offset = layout.offset(places_[parameter].index) - layout.part_count() * part;
  return {std::max<std::int64_t>(0, -offset),
          std::min(parameters_[parameter].numel(), layout.part_count() - offset)};
}

std::pair<std::int64_t, std::int64_t> Optimizer::own_elements(std::size_t parameter) const {
  return elements_in(parameter, group_ ? group_->rank() : 0);
}

at::Tensor Optimizer::own_state(std::size_t parameter, std::size_t name) const {
  const auto [first, last] = own_elements(parameter);
  if (first >= last) return at::empty({0}, at::kFloat);
  return row_of(parameter).state[name].narrow(0, state_offset(parameter) + first, last - first);
}

std::string Optimizer::state_name(std::size_t name, std::size_t parameter) const {
  return fmt::format("{}.{}", name < state_names_.size() ? state_names_[name] : kMaster, parameter);
}

void Optimizer::zero_grad() {
  for (auto& parameter : parameters_) parameter.mutable_grad() = at::Tensor();
  for (Row& row : rows_) row.gradients = at::Tensor();
  has_gradient_.assign(parameters_.size(), false);
}

std::vector<OrderedGradient> Optimizer::gradients() const {
  if (!shards_gradients_) return ordered_gradients(parameters_);
  std::vector<OrderedGradient> all;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!has_gradient_[i]) continue;
    const auto [first, last] = own_elements(i);
    const at::Tensor own =
        first < last ? row_of(i).gradients.narrow(0, state_offset(i) + first, last - first)
                     : at::empty({0}, at::kFloat);
    all.push_back({i, own, std::max<std::int64_t>(first, 0)});
  }
  return all;
}

std::vector<at::Tensor> Optimizer::gradient_memory() const {
  if (!shards_gradients_) return gradients_of(parameters_);
  std::vector<at::Tensor> all;
  for (const auto& own : gradients()) all.push_back(own.tensor);
  return all;
}

std::vector<GradientUnit> Optimizer::gradient_units() const {
  std::vector<GradientUnit> units;
  if (!shards_gradients_) return units;
  for (const Row& row : rows_) units.push_back({row.parameters, row.layout, units.size()});
  return units;
}

at::Tensor Optimizer::gradient_part(std::size_t unit) {
  Row& row = rows_[unit];
  if (!row.gradients.defined()) row.gradients = at::empty({row.layout.part_count()}, at::kFloat);
  return row.gradients;
}

at::Tensor Optimizer::whole(const at::Tensor& own) const {
  return group_ ? all_gather_into_tensor(*group_, own) : own;
}

NamedTensors Optimizer::state() const {
  NamedTensors all;
  for (std::size_t name = 0; name <= state_names_.size(); ++name) {
    std::vector<at::Tensor> flats;
    for (const Row& row : rows_)
      flats.push_back(name < num_states(row) ? whole(row.state[name]) : at::Tensor());
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const at::Tensor& flat = flats[places_[i].row];
      if (!flat.defined()) continue;
      all.emplace_back(state_name(name, i),
                       row_of(i).layout.place(flat, places_[i].index, parameters_[i]));
    }
  }
  all.push_back(num_steps());
  return all;
}

std::pair<std::string, at::Tensor> Optimizer::num_steps() const {
  return {kNumSteps, at::tensor(num_steps_, at::kLong)};
}

std::vector<StatePart> Optimizer::state_parts() const {
  std::vector<StatePart> parts;
  for (std::size_t name = 0; name <= state_names_.size(); ++name) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (name >= num_states(row_of(i))) continue;
      StatePart part{state_name(name, i), parameters_[i], own_state(i, name)};
      if (part.elements.numel() > 0) part.first = own_elements(i).first;
      parts.push_back(std::move(part));
    }
  }
  return parts;
}

void Optimizer::set_state(const NamedTensors& state) {
  const std::vector<StatePart> own = state_parts();
  check(state.size() == own.size() + 1 && state.back().first == kNumSteps,
        "{}: {} tensors were given as the state of {} parameters, which has {}", name(),
        state.size(), parameters_.size(), own.size() + 1);
  const at::Tensor steps = state.back().second.to(at::kLong).contiguous();
  check(steps.numel() == static_cast<std::int64_t>(num_steps_.size()),
        "{}: {} step counts were given for {} parameters", name(), steps.numel(),
        num_steps_.size());
  for (std::size_t i = 0; i < own.size(); ++i) {
    check(state[i].first == own[i].name && state[i].second.sizes() == own[i].like.sizes(),
          "{}: the state has {} of {} elements where {} of {} is wanted", name(), state[i].first,
          state[i].second.numel(), own[i].name, own[i].like.numel());
  }
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < own.size(); ++i) {
    if (own[i].elements.numel() == 0) continue;
    at::Tensor given = at::empty_strided(own[i].like.sizes(), own[i].like.strides(), at::kFloat);
    given.copy_(state[i].second);
    own[i].elements.copy_(
        given.as_strided({given.numel()}, {1}).narrow(0, own[i].first, own[i].elements.numel()));
  }
  const std::int64_t* const counts = steps.data_ptr<std::int64_t>();
  adopt_state({counts, counts + num_steps_.size()});
}

std::vector<std::pair<std::int64_t, std::int64_t>> Optimizer::elements_to_save(
    std::size_t parameter) const {
  if (host_parts_) return elements_to_load(parameter);
  return {{0, parameters_[parameter].numel()}};
}

void Optimizer::begin_loading() {
  if (host_parts_) host_parts_->forget();
}

std::vector<std::pair<std::int64_t, std::int64_t>> Optimizer::elements_to_load(
    std::size_t parameter) const {
  if (!copy_) return {{0, parameters_[parameter].numel()}};
  std::vector<std::pair<std::int64_t, std::int64_t>> runs;
  for (const int part : peer_ranks_) {
    if (host_parts_ && part != group_->rank()) continue;
    const auto [first, last] = elements_in(parameter, part);
    if (first < last) runs.emplace_back(first, last);
  }
  return runs;
}

std::size_t Optimizer::num_gradient_bytes() const {
  std::size_t bytes = 0;
  for (const OrderedGradient& gradient : gradients()) bytes += gradient.tensor.nbytes();
  return bytes;
}

std::size_t Optimizer::num_state_bytes() const {
  std::size_t bytes = 0;
  for (const Row& row : rows_) {
    for (const auto& own : row.state) bytes += own.nbytes();
  }
  return bytes;
}

}  // namespace paceline::optim
