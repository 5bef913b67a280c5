#pragma once

// Optimizers that take a whole step in one pass over memory: parameter, gradient and state are read
// once per element, and parameter and state are written once, vectorised. The formulas are
// LibTorch's; a step equals LibTorch's own up to rounding. Parameters come in groups, each with its
// own learning rate and options (update_rules.h). shard() divides the step among ranks; the
// parameters get the same bits as without it. A 16-bit parameter has a float32 master in the state.
// If a parameter differs from its rounded master, because it was loaded or averaged, the master
// takes the parameter's value. See docs/optimizers.md; parameter_home.h explains where parameters
// are stored, and guarded_state.h how damaged memory is detected.
//
// Parameters must be dense float32, bfloat16 or float16 tensors on the CPU; gradients may have
// these types too. Thread safety: none. A step uses LibTorch's intra-op threads.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/optim_kernels/kernels.h"
#include "paceline/training/optim/divided_parameters.h"
#include "paceline/training/optim/guarded_state.h"
#include "paceline/training/optim/optimizer_shards.h"
#include "paceline/training/optim/parameter_home.h"
#include "paceline/training/optim/parameter_norms.h"
#include "paceline/training/optim/parameter_rows.h"
#include "paceline/training/optim/rules/tensor_blocks.h"

namespace paceline::optim {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Divides the steps among the ranks of `group`. Collective; call it before the first step.
  // Afterwards step(), state() and set_state() are collective too. Requires: every rank has the
  // same parameters with the same values and, at every step, the same gradients (as
  // DistributedDataParallel leaves them). The parameters move into the group's symmetric memory, or
  // into one copy per host. Does nothing in a group of one rank.
  void shard(std::shared_ptr<ProcessGroup> group, const ShardOptions& options = {});
  // While the result lives, this process may write to the parameters outside of a step, by any
  // means, if it writes the same values as every other rank. With one copy this is the only way to
  // write to them: any other write outside of a step ends the process. If hosts divide the
  // parameters, the call is collective, and every host has all parameters while the result lives.
  // Several results of this function and of whole_parameters() may exist at once, and they may
  // outlive the optimizer.
  std::shared_ptr<void> writable_parameters() const;
  bool has_one_copy() const { return home_->has_one_copy(); }
  // If hosts divide the parameters, all of them are whole while the result lives, for reads that
  // are not operations of LibTorch; the call is collective, and so is the destruction of the
  // result. Otherwise returns null.
  std::shared_ptr<void> whole_parameters() const { return home_->whole(); }
  bool divides_hosts() const { return home_->divides_hosts(); }
  // Throws the error, if any, that kept parameters of other hosts from arriving.
  void require_parameters() const { home_->require(); }

  // Sets how the model is divided among ranks; call it before the first step. Afterwards
  // clip_grad_norm(), grad_norm() and GradScaler are collective over `parts.model`, and step() with
  // norms (LAMB, LARS) is collective over `parts.layers`.
  void set_model_parts(const ModelParts& parts);
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
  // Takes a step; parameters without a gradient keep their values. DamagedState when the state or a
  // parameter has changed since the previous step.
  void step();
  // Drops the gradients, so that the next backward pass writes new gradients instead of adding to
  // zeros.
  void zero_grad() { rows_.drop_gradients(); }
  // The gradients that this rank has: whole gradients or, if gradients are divided, those of this
  // rank's part. Error(kInvalid) for gradients that are not dense float32, bfloat16 or float16
  // tensors on the CPU.
  std::vector<OrderedGradient> gradients() const { return rows_.gradients(); }
  // The memory of these gradients, so that callers can change them in place. Errors as above.
  std::vector<at::Tensor> gradient_memory() const { return rows_.gradient_memory(); }

  // Whether gradients are divided (ShardOptions::unit_bytes): after a backward pass each rank has
  // the gradients of its part (fully_shard.h). `.grad` stays undefined between passes, and reading
  // it is Error(kInvalid): use the optimizer to clip and unscale. The units of gradient_units()
  // have about the order in which a backward pass completes them. A parameter has a gradient if it
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

  std::size_t num_groups() const { return learning_rates_.size(); }
  double learning_rate(std::size_t group = 0) const { return learning_rates_.at(group); }
  const std::vector<double>& learning_rates() const { return learning_rates_; }
  // Set the rate of all groups, or of one group. Error(kInvalid) unless the rate is finite and at
  // least 0.
  void set_learning_rate(double learning_rate);
  void set_learning_rate(std::size_t group, double learning_rate);
  // Sets the rate of each group. Error(kInvalid) unless there is one rate for each group.
  void set_learning_rates(const std::vector<double>& learning_rates);
  // A group's momentum; Adam and similar optimizers call it beta1.
  virtual double momentum(std::size_t group) const = 0;
  // Sets a group's momentum. Error(kInvalid) if it is not in [0, 1), or if the group has no
  // momentum.
  virtual void set_momentum(std::size_t group, double momentum) = 0;

  // The parameters of all groups, in the order of the groups. Each tensor is listed once, even if
  // it was given twice (tied weights).
  const std::vector<at::Tensor>& parameters() const { return rows_.parameters(); }
  // The group of parameters()[parameter].
  std::size_t group_of(std::size_t parameter) const { return group_of_[parameter]; }

  // "adam", "adamw", "sgd", "lamb" or "lars".
  virtual const char* name() const = 0;
  // The whole state. For each state name there is one float32 tensor for each parameter, with the
  // parameter's shape: "exp_avg.3" belongs to parameter 3, and so does "master.3" if that is a
  // 16-bit parameter. The last tensor, "num_steps", has the number of steps of each parameter. The
  // tensors may or may not share the optimizer's own memory. The learning rates are not included.
  NamedTensors state() const;
  // The parts of state() that this rank keeps, without the last tensor, "num_steps"; not
  // collective.
  std::vector<StatePart> state_parts() const { return rows_.state_parts(); }
  // The number of steps of each parameter: the last tensor of state(). Every rank has it whole.
  std::pair<std::string, at::Tensor> num_steps() const;
  // Call it after other code has written to the memory of state_parts(): accepts the state and the
  // parameters with their current values. `num_steps`: the number of steps of each parameter.
  void adopt_state(const std::vector<std::int64_t>& num_steps);
  // The ranges [first, last) of a parameter's elements, in the order of its memory, that this rank
  // must save so that together the ranks save all elements: all elements or, if hosts divide the
  // parameters, this rank's part.
  std::vector<std::pair<std::int64_t, std::int64_t>> elements_to_save(std::size_t parameter) const {
    return home_->to_save(parameter);
  }
  // The ranges that this rank must load: all elements; with one copy per host, the parts of this
  // rank and of its peers on other hosts; if hosts divide the parameters, this rank's part.
  std::vector<std::pair<std::int64_t, std::int64_t>> elements_to_load(std::size_t parameter) const {
    return home_->to_load(parameter);
  }
  // The address of the parameter's element 0, in the order of its memory, to which a load may
  // write. First all ranks must call begin_loading(), at a time when no rank reads the parameters;
  // no rank may read them until all ranks have written their elements.
  std::byte* parameter_to_write(std::size_t parameter) const { return home_->to_write(parameter); }
  void begin_loading() { home_->forget_other_hosts(); }
  // The ranks among which the state is divided; null if it is not divided.
  ProcessGroup* shard_group() const { return home_->group(); }
  // Loads a state. Requires: tensors like those from state(), with any values. Error(kInvalid) when
  // the state is from another optimizer.
  void set_state(const NamedTensors& state);
  // Reads this rank's parts of the state and of the parameters. DamagedState when they have changed
  // since the last step or set_state(). Not collective.
  void verify_state() const { guard_.verify(); }
  // The bytes of state, and of gradients, that this rank keeps.
  std::size_t num_state_bytes() const { return rows_.num_state_bytes(); }
  std::size_t num_gradient_bytes() const;
  // Seconds that steps, and operations on divided parameters, have waited for other ranks' parts
  // since the last call.
  double take_exposed_seconds();

 protected:
  // The parameters of one group.
  struct GroupTensors {
    std::vector<at::Tensor> parameters;
    double learning_rate = 0;
  };
  enum class Norms : std::uint8_t { kNone, kPerParameter };

  // `state_names`: for each name, the optimizer keeps one zero-initialised tensor for each
  // parameter. Error(kInvalid) for a parameter that is in two groups.
  Optimizer(const std::vector<GroupTensors>& groups, std::vector<std::string> state_names,
            Norms norms = Norms::kNone);
  // Adds another group; used by GroupedOptimizer::add_param_group().
  void add_group(const GroupTensors& group);
  bool has_state() const { return !rows_.state_names().empty(); }

  // Elements [0, count) of one parameter. state[i] belongs to state_names[i]; a kernel adds the
  // words that it read and wrote to `sums` (kernels.h).
  struct Slice {
    float* parameter;  // the master of a 16-bit parameter
    const float* gradient;
    float* const* state;
    WordSums* sums;
    std::int64_t count;
    std::int64_t step;  // the parameter's step, from 1; steps without a gradient are not counted
    std::size_t group;
  };

  // Updates the elements of `slice`. `norms`: the square roots of measure()'s sums over the whole
  // parameter; zeros without Norms::kPerParameter.
  virtual void update(const Slice& slice, const NormPair& norms) const = 0;
  // With Norms::kPerParameter it is called before update(). Returns the sums of squares over these
  // elements; there are at most kBlock of them.
  virtual NormPair measure(const Slice&) const { return {}; }

 private:
  void add_to_group(const GroupTensors& group, std::vector<at::Tensor>& all);
  void begin_rows(std::size_t num_kept);
  bool has_stepped() const;
  void measure_norms(const OrderedGradient& gradient);
  void update_parameter(const OrderedGradient& gradient);
  template <class Visit>
  GuardedState::Sums for_slices(const OrderedGradient& gradient, std::int64_t begin,
                                std::int64_t end, bool writes, const Visit& visit) const;
  template <class Communicate>
  void expose(const Communicate& communicate);

  ParameterRows rows_;
  std::unique_ptr<ParameterHome> home_;
  GuardedState guard_;
  std::unique_ptr<ParameterNorms> norms_;         // null: the update rule needs no norms
  std::shared_ptr<const void> gradient_divider_;  // null: gradients are not divided
  std::vector<std::size_t> group_of_;             // [parameter]
  std::vector<double> learning_rates_;            // [group]
  std::vector<std::int64_t> num_steps_;  // [parameter]: steps in which the parameter had a gradient
  ModelParts parts_;
  std::vector<bool> is_copy_;  // [parameter]: another rank counts it in norms
  double exposed_seconds_ = 0;
  std::function<void()> before_step_;
};

}  // namespace paceline::optim
