// Computes a step of an optimizer whose parameters are on a CUDA device.

#include <map>
#include <utility>

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/optim/optimizer_core.h"
#include "paceline/training/optim/rules/update_slice.h"
#include "paceline/training/tensor/collectives.h"

namespace paceline::optim {

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
