#include "paceline/training/optim/parameters/guarded_state.h"

#include <algorithm>
#include <bit>

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/training/optim/rules/tensor_blocks.h"

namespace paceline::optim {

void GuardedState::merge(Sums& sums, const Sums& more) {
  for (std::size_t place = 0; place < sums.size(); ++place) {
    if (more[place].any) sums[place].add(more[place].read, more[place].written);
  }
}

void GuardedState::begin(const ParameterHome& home, std::size_t num_kept) {
  home_ = &home;
  const auto& parameters = rows_.parameters();
  is_on_cpu_ = parameters.empty() || parameters.front().is_cpu();
  for (const std::size_t size : {num_kept, rows_.parameters().size()}) {
    sums_.resize(size);
    other_sums_.resize(size);
    marks_->resize(size);
  }
}

// Whether no operation has written to the parameter since the last step.
bool GuardedState::is_unwritten(std::size_t parameter) const {
  return (*marks_)[parameter].holds_for(rows_.parameters()[parameter]);
}

// Whether the words that this checksum covers are written only by steps.
bool GuardedState::is_state(std::size_t parameter, std::size_t place) const {
  if (place == kValues) return rows_.has_master(parameter);
  return place - kFirstState < rows_.state_names().size();
}

std::size_t GuardedState::place_of_parameter(std::size_t parameter) const {
  return rows_.has_master(parameter) ? kRounded : kValues;
}

std::size_t GuardedState::place_of_state(std::size_t state) const {
  return state < rows_.state_names().size() ? kFirstState + state : kValues;
}

void GuardedState::compare(std::size_t parameter, const Sums& sums) {
  for (std::size_t place = 0; place < sums.size(); ++place) {
    if (!sums[place].any) continue;
    std::uint32_t& expected = sums_[parameter][place];
    const bool is_known = is_state(parameter, place) || is_unwritten(parameter);
    if (is_known && sums[place].read != expected)
      fail_damaged(parameter, described(parameter, place), expected, sums[place].read);
    expected = sums[place].written;
  }
}

void GuardedState::verify() const {
  if (!is_on_cpu_) return;
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    verify_own_state(i);
    verify_parameter(i, true);
  }
}

void GuardedState::verify_own_state(std::size_t parameter) const {
  for (std::size_t state = 0; state < rows_.num_states(parameter); ++state) {
    const std::size_t place = place_of_state(state);
    const std::uint32_t expected = sums_[parameter][place];
    const std::uint32_t found = sum_of(rows_.own_state(parameter, state));
    if (found != expected) fail_damaged(parameter, described(parameter, place), expected, found);
  }
}

// Verifies the parts that other ranks update and, if `with_own`, also this rank's part. Does
// nothing if the program has written to the parameter since the last step.
void GuardedState::verify_parameter(std::size_t parameter, bool with_own) const {
  if (!is_unwritten(parameter)) return;
  const std::size_t place = place_of_parameter(parameter);
  const std::string what = described(parameter, place);
  if (with_own) {
    const std::uint32_t found = sum_of_own_elements(parameter);
    if (found != sums_[parameter][place])
      fail_damaged(parameter, what, sums_[parameter][place], found);
  }
  const std::uint32_t found = home_->sum_of_other_parts(parameter);
  if (found != other_sums_[parameter])
    fail_damaged(parameter, what + ", in the part that other ranks update,", other_sums_[parameter],
                 found);
}

void GuardedState::verify_unread(const std::vector<OrderedGradient>& gradients) const {
  auto updated = gradients.begin();
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    const bool is_updated = updated != gradients.end() && updated->parameter == i;
    if (is_updated) ++updated;
    verify_parameter(i, !is_updated);
  }
}

void GuardedState::remember(const std::vector<OrderedGradient>& gradients) {
  auto updated = gradients.begin();
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    const bool is_updated = updated != gradients.end() && updated->parameter == i;
    if (is_updated) ++updated;
    const bool was_unwritten = is_unwritten(i);
    if (!was_unwritten) (*marks_)[i] = WriteMark(rows_.parameters()[i]);
    if (!was_unwritten && !is_updated) sums_[i][place_of_parameter(i)] = sum_of_own_elements(i);
    other_sums_[i] = home_->sum_of_other_parts(i);
  }
}

void GuardedState::adopt() {
  if (!is_on_cpu_) return;
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    for (std::size_t state = 0; state < rows_.num_states(i); ++state)
      sums_[i][place_of_state(state)] = sum_of(rows_.own_state(i, state));
  }
  std::ranges::fill(*marks_, WriteMark());
  remember({});
}

std::shared_ptr<void> GuardedState::expect_writes(std::shared_ptr<void> writing) const {
  return {marks_.get(), [marks = marks_, writing](void*) mutable {
            std::ranges::fill(*marks, WriteMark());
            writing.reset();
          }};
}

std::uint32_t GuardedState::sum_of_own_elements(std::size_t parameter) const {
  return home_->sum_of_elements(parameter, rows_.own_elements(parameter));
}

// Returns "exp_avg of parameter fc1.weight"; a parameter without a name is shown by its number.
std::string GuardedState::described(std::size_t parameter, std::size_t place) const {
  const std::string& name = rows_.parameters()[parameter].name();
  const std::string whose = "parameter " + (name.empty() ? std::to_string(parameter) : name);
  if (place == place_of_parameter(parameter)) return whose;
  return (place == kValues ? "master" : rows_.state_names()[place - kFirstState]) + " of " + whose;
}

void GuardedState::fail_damaged(std::size_t parameter, const std::string& what,
                                std::uint32_t expected, std::uint32_t found) const {
  std::string who;
  if (const auto* const group = home_->group()) {
    const auto rank = static_cast<std::size_t>(group->rank());
    who = rank_name(group->rank(), group->world_ranks()[rank]) + ": ";
  }
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
