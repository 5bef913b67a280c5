#include "paceline/training/optim/parameters/parameter_rows.h"

#include <algorithm>
#include <limits>
#include <map>

#include <sys/mman.h>

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/training/tensor/tensor_marks.h"

namespace paceline::optim {
namespace {

using Plan = std::vector<std::vector<std::size_t>>;

constexpr std::size_t kNotChosen = std::numeric_limits<std::size_t>::max();

// Returns for each parameter the unit for which it was chosen.
std::vector<std::size_t> chosen_units(const std::vector<at::Tensor>& parameters,
                                      const std::vector<std::vector<at::Tensor>>& chosen) {
  const auto numbers = numbers_by_tensor(parameters);
  std::vector<std::size_t> units(parameters.size(), kNotChosen);
  for (std::size_t unit = 0; unit < chosen.size(); ++unit) {
    for (const at::Tensor& tensor : chosen[unit]) {
      const auto found = numbers.find(tensor.unsafeGetTensorImpl());
      check(found != numbers.end(), "unit {} has a tensor that is not one of the parameters", unit);
      std::size_t& of = units[found->second];
      check(of == kNotChosen || of == unit, "parameter {} is in unit {} and in unit {}",
            found->second, of, unit);
      of = unit;
    }
  }
  return units;
}

// Returns zeros that take no memory until they are written, because an optimizer has state for the
// whole model before shard() reduces the state to a part.
at::Tensor untouched_zeros(std::int64_t count, c10::Device device) {
  if (!device.is_cpu()) return at::zeros({count}, at::TensorOptions(at::kFloat).device(device));
  const auto bytes = static_cast<std::size_t>(count) * sizeof(float);
  if (bytes == 0) return at::empty({0}, at::kFloat);
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    throw system_error(fmt::format("cannot allocate {} bytes for the optimizer's state", bytes));
  return at::from_blob(
      memory, {count}, [bytes](void* zeros) { munmap(zeros, bytes); }, at::kFloat);
}

}  // namespace

Plan rows_by_type(const std::vector<at::Tensor>& parameters) {
  Plan rows;
  std::map<at::ScalarType, std::size_t> row_of;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto [found, is_new] = row_of.emplace(parameters[i].scalar_type(), rows.size());
    if (is_new) rows.emplace_back();
    rows[found->second].push_back(i);
  }
  return rows;
}

Plan plan_units(const std::vector<at::Tensor>& parameters, std::size_t unit_bytes,
                const std::vector<std::vector<at::Tensor>>& chosen) {
  struct Open {
    std::size_t row = 0;
    std::size_t bytes = 0;
  };
  const std::vector<std::size_t> units = chosen_units(parameters, chosen);
  Plan rows;
  std::map<std::pair<std::size_t, at::ScalarType>, Open>
      open;  // rows to which more parameters can be added
  for (std::size_t i = parameters.size(); i-- > 0;) {
    const std::size_t bytes = parameters[i].nbytes();
    if (units[i] == kNotChosen && bytes >= kAloneBytes) {
      rows.push_back({i});
      continue;
    }
    const std::pair key{units[i], parameters[i].scalar_type()};
    const auto [unit, is_new] = open.emplace(key, Open{.row = rows.size()});
    if (is_new) rows.emplace_back();
    rows[unit->second.row].push_back(i);
    unit->second.bytes += bytes;
    if (units[i] == kNotChosen && unit->second.bytes >= unit_bytes) open.erase(unit);
  }
  return rows;
}

// Afterwards the rows have another layout, so the state is copied.
void ParameterRows::add(const std::vector<at::Tensor>& parameters) {
  std::vector<std::vector<at::Tensor>> states(parameters_.size());
  for (std::size_t i = 0; i < states.size(); ++i) {
    for (std::size_t state = 0; state < num_states(i); ++state)
      states[i].push_back(own_state(i, state));
  }
  parameters_.insert(parameters_.end(), parameters.begin(), parameters.end());
  make(rows_by_type(parameters_), {});
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < states.size(); ++i) {
    for (std::size_t state = 0; state < states[i].size(); ++state)
      own_state(i, state).copy_(states[i][state]);
  }
}

void ParameterRows::make(const Plan& plan, const Division& division) {
  division_ = division;
  places_.resize(parameters_.size());
  has_gradient_.resize(parameters_.size());
  rows_.clear();
  for (const auto& numbers : plan) {
    Row row{.type = parameters_[numbers.front()].scalar_type(), .parameters = numbers};
    for (const std::size_t i : numbers) {
      places_[i] = {rows_.size(), row.tensors.size()};
      row.tensors.push_back(parameters_[i]);
    }
    row.layout = FlatLayout(row.tensors, division.num_parts,
                            division.divides_gradients ? FlatLayout::kBlock : 0);
    const std::size_t num_states = state_names_.size() + (is_16_bit(row.type) ? 1 : 0);
    for (std::size_t state = 0; state < num_states; ++state)
      row.state.push_back(untouched_zeros(row.layout.part_count(), row.tensors.front().device()));
    rows_.push_back(std::move(row));
  }
}

std::int64_t ParameterRows::offset(std::size_t parameter) const {
  return row_of(parameter).layout.offset(places_[parameter].index);
}

// Like offset(), but within this rank's part of the row.
std::int64_t ParameterRows::own_offset(std::size_t parameter) const {
  return offset(parameter) - row_of(parameter).layout.part_count() * division_.own_part;
}

ParameterRows::Run ParameterRows::elements_in(std::size_t parameter, int part) const {
  const std::int64_t count = row_of(parameter).layout.part_count();
  const std::int64_t begin = offset(parameter) - count * part;
  return {std::max<std::int64_t>(0, -begin),
          std::min(parameters_[parameter].numel(), count - begin)};
}

bool ParameterRows::has_master(std::size_t parameter) const {
  return is_16_bit(row_of(parameter).type);
}

std::string ParameterRows::state_name(std::size_t state, std::size_t parameter) const {
  return fmt::format("{}.{}", state < state_names_.size() ? state_names_[state] : "master",
                     parameter);
}

float* ParameterRows::state_begin(std::size_t parameter, std::size_t state) const {
  return row_of(parameter).state[state].data_ptr<float>() + own_offset(parameter);
}

at::Tensor ParameterRows::own_state(std::size_t parameter, std::size_t state) const {
  const auto [first, last] = own_elements(parameter);
  if (first >= last) return at::empty({0}, row_of(parameter).state[state].options());
  return row_of(parameter).state[state].narrow(0, own_offset(parameter) + first, last - first);
}

std::vector<StatePart> ParameterRows::state_parts() const {
  std::vector<StatePart> parts;
  for (std::size_t state = 0; state <= state_names_.size(); ++state) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (state >= num_states(i)) continue;
      StatePart part{state_name(state, i), parameters_[i], own_state(i, state)};
      if (part.elements.numel() > 0) part.first = own_elements(i).first;
      parts.push_back(std::move(part));
    }
  }
  return parts;
}

at::Tensor ParameterRows::whole_state(std::size_t parameter, const at::Tensor& row) const {
  return row_of(parameter).layout.place(row, places_[parameter].index, parameters_[parameter]);
}

std::size_t ParameterRows::num_state_bytes() const {
  std::size_t bytes = 0;
  for (const Row& row : rows_) bytes += total_bytes(row.state);
  return bytes;
}

std::vector<OrderedGradient> ParameterRows::gradients() const {
  if (!division_.divides_gradients) return ordered_gradients(parameters_);
  std::vector<OrderedGradient> all;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!has_gradient_[i]) continue;
    const auto [first, last] = own_elements(i);
    const at::Tensor own =
        first < last
            ? row_of(i).gradients.narrow(0, own_offset(i) + first, last - first)
            : at::empty({0}, at::TensorOptions(at::kFloat).device(parameters_[i].device()));
    all.push_back({i, own, std::max<std::int64_t>(first, 0)});
  }
  return all;
}

std::vector<at::Tensor> ParameterRows::gradient_memory() const {
  if (!division_.divides_gradients) return gradients_of(parameters_);
  std::vector<at::Tensor> all;
  for (const OrderedGradient& own : gradients()) all.push_back(own.tensor);
  return all;
}

std::vector<GradientUnit> ParameterRows::gradient_units() const {
  std::vector<GradientUnit> units;
  if (!division_.divides_gradients) return units;
  for (const Row& row : rows_) units.push_back({row.parameters, row.layout, units.size()});
  return units;
}

at::Tensor ParameterRows::gradient_part(std::size_t unit) {
  Row& row = rows_[unit];
  if (!row.gradients.defined()) {
    const auto options = at::TensorOptions(at::kFloat).device(row.tensors.front().device());
    row.gradients = at::empty({row.layout.part_count()}, options);
  }
  return row.gradients;
}

void ParameterRows::drop_gradients() {
  for (const at::Tensor& parameter : parameters_) own_gradient(parameter) = at::Tensor();
  for (Row& row : rows_) row.gradients = at::Tensor();
  has_gradient_.assign(parameters_.size(), false);
}

// The next pass may add its gradients to those that the unit still has, so the dropped elements
// become zeros.
void ParameterRows::drop_gradient(std::size_t parameter) {
  if (!division_.divides_gradients || !has_gradient_[parameter]) return;
  const auto [first, last] = own_elements(parameter);
  if (first < last)
    row_of(parameter).gradients.narrow(0, own_offset(parameter) + first, last - first).zero_();
  has_gradient_[parameter] = false;
}

}  // namespace paceline::optim
