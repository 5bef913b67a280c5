// How an Optimizer notices that its state or a parameter changed in memory by itself (optimizer.h).

#include <bit>

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error.h"
#include "paceline/training/optim/optimizer.h"
#include "paceline/training/optim/tensor_blocks.h"
#include "paceline/training/tensor/tensor_view.h"

namespace paceline::optim {

// Whether no operation has written to the parameter since the last step left it.
bool Optimizer::is_unwritten(std::size_t parameter) const {
  return (*marks_)[parameter].holds_for(parameters_[parameter]);
}

// Whether only steps write what the sum in this place is of.
bool Optimizer::is_state(std::size_t parameter, std::size_t place) const {
  if (place == kValues) return has_master(parameter);
  return place - kFirstState < state_names_.size();
}

std::size_t Optimizer::place_of_parameter(std::size_t parameter) const {
  return has_master(parameter) ? kRounded : kValues;
}

// Requires that a pass has read what the pass before it wrote.
void Optimizer::check_sums(std::size_t parameter, const Sums& sums) {
  for (std::size_t place = 0; place < kMaxSums; ++place) {
    if (!sums[place].any) continue;
    std::uint32_t& expected = sums_[parameter][place];
    const bool is_known = is_state(parameter, place) || is_unwritten(parameter);
    if (is_known && sums[place].read != expected)
      fail_corrupt(parameter, described(parameter, place), expected, sums[place].read);
    expected = sums[place].written;
  }
}

void Optimizer::verify_state() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    verify_own_state(i);
    verify_parameter(i, true);
  }
}

void Optimizer::verify_own_state(std::size_t parameter) const {
  const Row& row = row_of(parameter);
  for (std::size_t name = 0; name < num_states(row); ++name) {
    const std::size_t place = name < state_names_.size() ? kFirstState + name : kValues;
    const std::uint32_t expected = sums_[parameter][place];
    const std::uint32_t found = sum_of(own_state(parameter, name));
    if (found != expected) fail_corrupt(parameter, described(parameter, place), expected, found);
  }
}

// `with_own`: also the part that this rank updates.
void Optimizer::verify_parameter(std::size_t parameter, bool with_own) const {
  if (!is_unwritten(parameter)) return;
  const std::size_t place = place_of_parameter(parameter);
  const std::string what = described(parameter, place);
  if (with_own) {
    const std::uint32_t found = sum_of_own_elements(parameter);
    if (found != sums_[parameter][place])
      fail_corrupt(parameter, what, sums_[parameter][place], found);
  }
  const std::uint32_t found = sum_of_other_parts(parameter);
  if (found != other_sums_[parameter])
    fail_corrupt(parameter, what + ", in the part that other ranks update,", other_sums_[parameter],
                 found);
}

// Verifies what the updates of a step do not read.
void Optimizer::verify_unread_parameters(const std::vector<OrderedGradient>& gradients) const {
  auto updated = gradients.begin();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const bool is_updated = updated != gradients.end() && updated->parameter == i;
    if (is_updated) ++updated;
    verify_parameter(i, !is_updated);
  }
}

// Remembers the parameters after a step, once this rank has what the others updated.
void Optimizer::remember_parameters(const std::vector<OrderedGradient>& gradients) {
  auto updated = gradients.begin();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const bool is_updated = updated != gradients.end() && updated->parameter == i;
    if (is_updated) ++updated;
    const bool was_unwritten = is_unwritten(i);
    if (!was_unwritten) (*marks_)[i] = WriteMark(parameters_[i]);
    if (!was_unwritten && !is_updated) sums_[i][place_of_parameter(i)] = sum_of_own_elements(i);
    other_sums_[i] = sum_of_other_parts(i);
  }
}

void Optimizer::adopt_state(const std::vector<std::int64_t>& num_steps) {
  check(num_steps.size() == num_steps_.size(), "{}: {} step counts were given for {} parameters",
        name(), num_steps.size(), num_steps_.size());
  num_steps_ = num_steps;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    for (std::size_t name = 0; name < num_states(row_of(i)); ++name) {
      const std::size_t place = name < state_names_.size() ? kFirstState + name : kValues;
      sums_[i][place] = sum_of(own_state(i, name));
    }
  }
  marks_->assign(parameters_.size(), {});
  remember_parameters({});
}

// Elements [first, last) of a parameter, in the order of its memory; none when last <= first.
std::uint32_t Optimizer::sum_of_elements(std::size_t parameter, std::int64_t first,
                                         std::int64_t last) const {
  if (first >= last) return 0;
  const Dtype type = to_dtype(row_of(parameter).type);
  return sum_of(type,
                parameter_to_write(parameter) + static_cast<std::size_t>(first) * size_of(type),
                last - first);
}

std::uint32_t Optimizer::sum_of_own_elements(std::size_t parameter) const {
  const auto [first, last] = own_elements(parameter);
  return sum_of_elements(parameter, first, last);
}

// The sum over the parts that other ranks update and this rank has. With one copy these are the
// parts that it brought from other hosts; where hosts divide the parameters there are none, because
// such parts are here only during passes.
std::uint32_t Optimizer::sum_of_other_parts(std::size_t parameter) const {
  if (!group_ || host_parts_) return 0;
  std::uint32_t sum = 0;
  if (copy_) {
    for (const int part : peer_ranks_) {
      if (part == group_->rank()) continue;
      const auto [first, last] = elements_in(parameter, part);
      sum += sum_of_elements(parameter, first, last);
    }
    return sum;
  }
  const std::int64_t count = parameters_[parameter].numel();
  const auto [first, last] = own_elements(parameter);
  if (first >= last) return sum_of_elements(parameter, 0, count);
  return sum_of_elements(parameter, 0, first) + sum_of_elements(parameter, last, count);
}

// "exp_avg of parameter fc1.weight", with the parameter's number where it has no name.
std::string Optimizer::described(std::size_t parameter, std::size_t place) const {
  const std::string& name = parameters_[parameter].name();
  const std::string whose = "parameter " + (name.empty() ? std::to_string(parameter) : name);
  if (place == place_of_parameter(parameter)) return whose;
  return (place == kValues ? "master" : state_names_[place - kFirstState]) + " of " + whose;
}

void Optimizer::fail_corrupt(std::size_t parameter, const std::string& what, std::uint32_t expected,
                             std::uint32_t found) const {
  const auto rank = group_ ? static_cast<std::size_t>(group_->rank()) : 0;
  const std::string who =
      group_ ? rank_name(group_->rank(), group_->world_ranks()[rank]) + ": " : std::string();
  const bool is_one_bit =
      std::has_single_bit(found - expected) || std::has_single_bit(expected - found);
  throw DamagedState(fmt::format(
      "{}{} changed in memory after step {}: its words add up to {:08x}, the step left {:08x}{}; "
      "memory is failing or was overwritten, or the program wrote through data() or data_ptr() "
      "without holding Optimizer::writable_parameters(): continue from a checkpoint",
      who, what, num_steps_[parameter], found, expected,
      is_one_bit ? ", as if one bit had flipped" : ""));
}

}  // namespace paceline::optim
