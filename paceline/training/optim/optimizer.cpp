#include "paceline/training/optim/optimizer.h"

#include <utility>

#include "paceline/training/optim/optimizer_core.h"

namespace paceline::optim {

Optimizer::Optimizer(const std::vector<GroupTensors>& groups, std::vector<std::string> state_names,
                     Norms norms)
    : core_(std::make_shared<OptimizerCore>(*this, std::move(state_names),
                                            norms == Norms::kPerParameter)) {
  core_->add_groups(groups);
}

Optimizer::~Optimizer() = default;

void Optimizer::add_group(const GroupTensors& group) { core_->add_groups({group}); }

bool Optimizer::has_state() const { return !core_->rows().state_names().empty(); }

NormPair Optimizer::measure(const UpdateSlice& /*slice*/) const { return {}; }

bool Optimizer::take_whole_step(std::vector<double>& /*rates*/) const { return false; }

std::size_t Optimizer::num_bytes_of_own_state() const { return 0; }

std::shared_ptr<void> Optimizer::writable_parameters() const {
  return core_->writable_parameters();
}

std::shared_ptr<void> Optimizer::whole_parameters() const { return core_->whole_parameters(); }

void Optimizer::set_model_parts(const ModelParts& parts) { core_->set_model_parts(parts); }

void Optimizer::step() { core_->step(); }

void Optimizer::zero_grad() { core_->drop_gradients(); }

const std::vector<double>& Optimizer::learning_rates() const { return core_->learning_rates(); }

void Optimizer::set_learning_rate(double learning_rate) {
  set_learning_rates(std::vector<double>(num_groups(), learning_rate));
}

void Optimizer::set_learning_rate(std::size_t group, double learning_rate) {
  std::vector<double> rates = learning_rates();
  rates.at(group) = learning_rate;
  set_learning_rates(rates);
}

void Optimizer::set_learning_rates(const std::vector<double>& learning_rates) {
  core_->set_learning_rates(learning_rates);
}

const std::vector<at::Tensor>& Optimizer::parameters() const { return core_->parameters(); }

std::size_t Optimizer::group_of(std::size_t parameter) const { return core_->group_of(parameter); }

NamedTensors Optimizer::state() const { return core_->state(); }

void Optimizer::set_state(const NamedTensors& state) { core_->set_state(state); }

void Optimizer::verify_state() const { core_->verify_state(); }

std::size_t Optimizer::num_state_bytes() const {
  return core_->rows().num_state_bytes() + num_bytes_of_own_state();
}

}  // namespace paceline::optim
