#pragma once

// An optimizer as the library itself uses it: its parameters in rows, where they are stored, its
// guarded state and its norms, and the functions that fully_shard(), the reducer, checkpoints and
// clipping call. Users see Optimizer (optimizer.h), which owns this object; parameter_home.h
// explains where parameters are stored, and guarded_state.h how damaged memory is detected.
//
// Thread safety: none, except for divides_gradient_of().

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/optim/optimizer.h"
#include "paceline/training/optim/parameters/divided_parameters.h"
#include "paceline/training/optim/parameters/guarded_state.h"
#include "paceline/training/optim/parameters/parameter_home.h"
#include "paceline/training/optim/parameters/parameter_norms.h"
#include "paceline/training/optim/parameters/parameter_rows.h"
#include "paceline/training/optim/rules/tensor_blocks.h"
#include "paceline/training/optim/rules/update_slice.h"

namespace paceline::optim {

class OptimizerCore {
 public:
  using GroupTensors = Optimizer::GroupTensors;

  static OptimizerCore& of(Optimizer& optimizer) { return *optimizer.core_; }
  static const OptimizerCore& of(const Optimizer& optimizer) { return *optimizer.core_; }

  // `owner` computes the updates; it outlives this object. Add groups before anything else.
  OptimizerCore(const Optimizer& owner, std::vector<std::string> state_names, bool with_norms);
  OptimizerCore(const OptimizerCore&) = delete;
  OptimizerCore& operator=(const OptimizerCore&) = delete;

  // Adds groups. The functions below, up to verify_state(), are Optimizer's, except for shard().
  void add_groups(const std::vector<GroupTensors>& groups);
  // Divides the steps among the ranks of `group`. Collective; call it before the first step.
  // Afterwards step(), state() and set_state() are collective too. Requires: every rank has the
  // same parameters with the same values and, at every step, the same gradients (as
  // DistributedDataParallel leaves them). The parameters move into memory that the ranks share or
  // divide (parameter_home.h). Does nothing in a group of one rank.
  void shard(std::shared_ptr<ProcessGroup> group, const ShardOptions& options = {});
  std::shared_ptr<void> writable_parameters() const;
  std::shared_ptr<void> whole_parameters() const { return home_->whole(); }
  void set_model_parts(const ModelParts& parts);
  void step();
  const std::vector<double>& learning_rates() const { return learning_rates_; }
  void set_learning_rates(const std::vector<double>& learning_rates);
  const std::vector<at::Tensor>& parameters() const { return rows_.parameters(); }
  std::size_t group_of(std::size_t parameter) const { return group_of_[parameter]; }
  NamedTensors state() const;
  void set_state(const NamedTensors& state);
  void verify_state() const { guard_.verify(); }

  // The rows of the parameters, their state and their gradients.
  const ParameterRows& rows() const { return rows_; }
  void drop_gradients() { rows_.drop_gradients(); }

  // Whether ranks share the parameters, in one copy per host or in parts; and whether the
  // parameters are divided into parts, among hosts or among ranks.
  bool shares_parameters() const { return home_->shares_parameters(); }
  bool divides_parameters() const { return home_->divides_parameters(); }
  // Throws the error, if any, that kept parameters of other hosts or ranks from arriving.
  void require_parameters() const { home_->require(); }
  // The ranks among which the state is divided; null if it is not divided.
  ProcessGroup* shard_group() const { return home_->group(); }

  // The ranks that together have the model; null: this rank has all of it.
  ProcessGroup* model_group() const { return parts_.model.get(); }
  // Throws Error(kInvalid), which names `caller`, if parameters are known to be a share of a model
  // (training/tensor/tensor_marks.h) and set_model_parts() has not described how the model is
  // divided.
  void require_model_parts(const char* caller) const;
  // Whether this rank's elements of the parameter count in norms over the model.
  bool counts_in_norms(std::size_t parameter) const { return !is_copy_[parameter]; }

  // `before_step` is called at the beginning of each step; an empty function removes it.
  void set_before_step(std::function<void()> before_step) { before_step_ = std::move(before_step); }

  // The gradients that this rank has: whole gradients or, if gradients are divided, those of this
  // rank's part. Error(kInvalid) for gradients that are not dense float32, bfloat16 or float16
  // tensors on the CPU or a CUDA device.
  std::vector<OrderedGradient> gradients() const { return rows_.gradients(); }
  // The memory of these gradients, so that callers can change them in place. Throws the errors of
  // gradients().
  std::vector<at::Tensor> gradient_memory() const { return rows_.gradient_memory(); }
  // The bytes of gradients that this rank keeps.
  std::size_t num_gradient_bytes() const;

  // Whether gradients are divided (ShardOptions::unit_bytes): after a backward pass each rank has
  // the gradients of its part (fully_shard.h). `.grad` stays undefined between passes, and reading
  // it is Error(kInvalid): use the optimizer to clip and unscale. The units of gradient_units() are
  // roughly in the order in which a backward pass completes them. A parameter has a gradient if it
  // has one on any rank.
  bool shards_gradients() const { return gradient_divider_ != nullptr; }
  // Whether an optimizer of this process divides this parameter's gradient. Any thread may call it.
  static bool divides_gradient_of(const at::Tensor& parameter) {
    return is_gradient_divided(parameter);
  }
  std::vector<GradientUnit> gradient_units() const { return rows_.gradient_units(); }
  // This rank's part of a unit's gradients, as a float32 row. After zero_grad() its values are
  // undefined until they are written.
  at::Tensor gradient_part(std::size_t unit) { return rows_.gradient_part(unit); }
  bool has_gradient(std::size_t parameter) const { return rows_.has_gradient(parameter); }
  void set_has_gradient(std::size_t parameter) { rows_.set_has_gradient(parameter); }

  // The parts of state() that this rank keeps, without the last tensor, "num_steps"; not
  // collective.
  std::vector<StatePart> state_parts() const { return rows_.state_parts(); }
  // The number of steps of each parameter: the last tensor of state(). Every rank has it whole.
  std::pair<std::string, at::Tensor> num_steps() const;
  // Call it after other code has written to the memory of state_parts(): accepts the state and the
  // parameters with their current values. `num_steps`: the number of steps of each parameter.
  void adopt_state(const std::vector<std::int64_t>& num_steps);
  // The ranges [first, last) of a parameter's elements, in the order of its memory, that this rank
  // must save so that together the ranks save all elements: all elements or, if the parameters are
  // divided, this rank's part.
  std::vector<std::pair<std::int64_t, std::int64_t>> elements_to_save(std::size_t parameter) const {
    return home_->to_save(parameter);
  }
  // The ranges that this rank must load: all elements; with one copy per host, the parts of this
  // rank and of its peers on other hosts; if the parameters are divided, this rank's part.
  std::vector<std::pair<std::int64_t, std::int64_t>> elements_to_load(std::size_t parameter) const {
    return home_->to_load(parameter);
  }
  // A range of elements_to_save() or elements_to_load() as a row, to which a load may write. First
  // all ranks must call begin_loading(), at a time when no rank reads the parameters; no rank may
  // read them until all ranks have written their elements.
  at::Tensor elements(std::size_t parameter, ParameterHome::Run run) const {
    return home_->elements(parameter, run);
  }
  void begin_loading() { home_->forget_others(); }

  // Seconds that steps, and operations on divided parameters, have waited for other ranks' parts
  // since the last call.
  double take_exposed_seconds();

 private:
  void add_to_group(const GroupTensors& group, std::vector<at::Tensor>& all);
  void begin_rows(std::size_t num_kept);
  bool has_stepped() const;
  bool is_on_device() const;
  void count_writes(const std::vector<OrderedGradient>& gradients) const;
  void step_on_device(const std::vector<OrderedGradient>& gradients);
  void measure_on_device(std::map<std::pair<std::size_t, std::int64_t>, UpdateLists>& all);
  void measure_norms(const OrderedGradient& gradient);
  void update_parameter(const OrderedGradient& gradient);
  template <class Visit>
  GuardedState::Sums for_slices(const OrderedGradient& gradient, std::int64_t begin,
                                std::int64_t end, bool writes, const Visit& visit) const;
  template <class Communicate>
  void expose(const Communicate& communicate);

  const Optimizer& owner_;
  ParameterRows rows_;
  std::unique_ptr<ParameterHome> home_;
  GuardedState guard_;
  std::unique_ptr<ParameterNorms> norms_;                 // null: the update rule needs no norms
  std::shared_ptr<const DropGradient> gradient_divider_;  // null: gradients are not divided
  std::vector<std::size_t> group_of_;                     // [parameter]
  std::vector<double> learning_rates_;                    // [group]
  std::vector<std::int64_t> num_steps_;  // [parameter]: steps in which the parameter had a gradient
  ModelParts parts_;
  std::vector<bool> is_copy_;  // [parameter]: another rank counts it in norms
  double exposed_seconds_ = 0;
  std::function<void()> before_step_;
};

inline OptimizerCore& core_of(Optimizer& optimizer) { return OptimizerCore::of(optimizer); }
inline const OptimizerCore& core_of(const Optimizer& optimizer) {
  return OptimizerCore::of(optimizer);
}

// require_whole_model() throws Error(kInvalid), which names `caller`, for parameters that are known
// to be one rank's share of a model (training/tensor/tensor_marks.h), because a norm over them is
// not the model's norm. require_whole_parameters() throws only for parameters that are themselves
// parts of larger ones, because their norms are not those of the whole parameters.
void require_whole_model(const char* caller, const std::vector<at::Tensor>& parameters);
void require_whole_parameters(const char* caller, const std::vector<at::Tensor>& parameters);

}  // namespace paceline::optim
