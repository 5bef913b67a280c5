// A step of an optimizer whose parameters are on a CUDA device.

#include <map>
#include <utility>

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/optim/optimizer_core.h"
#include "paceline/training/optim/rules/update_slice.h"
#include "paceline/training/tensor/collectives.h"

namespace paceline::optim {

namespace {

// A 16-bit parameter, its elements that this rank updates, and their float32 master.
struct Mastered {
  at::Tensor elements, master;
};

// Updates the master wherever the parameter was changed outside of a step, because it was loaded or
// averaged.
void follow(const Mastered& mastered) {
  const at::Tensor is_kept =
      mastered.master.to(mastered.elements.scalar_type()).eq(mastered.elements);
  mastered.master.copy_(at::where(is_kept, mastered.master, mastered.elements.to(at::kFloat)));
}

}  // namespace

bool OptimizerCore::is_on_device() const {
  return !parameters().empty() && !parameters().front().is_cpu();
}

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

// Computes the norms of whole parameters, on ranks that have all of them.
void OptimizerCore::measure_on_device(
    std::map<std::pair<std::size_t, std::int64_t>, UpdateLists>& all) {
  check(!parts_.layers && !home_->group(),
        "{}: on a CUDA device the norms of divided parameters are not available; use adamw, or "
        "leave the optimizer undivided",
        owner_.name());
  for (auto& [key, lists] : all) {
    for (const at::Tensor& sums : owner_.measure(lists)) lists.norms.push_back(sums.sqrt());
  }
}

}  // namespace paceline::optim
