#pragma once

// Optimizers that take a whole step in one pass over memory: parameter, gradient and state are read
// once and written once per element, vectorised. The formulas are LibTorch's; a step equals
// LibTorch's own up to rounding. Parameters come in groups, each with a learning rate and options
// of its own (update_rules.h). shard() divides the step among ranks; the parameters get the same
// bits as without it. A 16-bit parameter has a float32 master in the state. If the parameter is no
// longer its rounded master, because it was loaded or averaged, the master takes the parameter's
// value. docs/optimizers.md has more; parameter_home.h says where parameters lie, and
// guarded_state.h how damaged memory is detected.
//
// Parameters must be dense float32, bfloat16 or float16 tensors on the CPU; gradients have these
// types too. Thread safety: none. A step uses LibTorch's intra-op threads.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/optim/divided_parameters.h"
#include "paceline/training/optim/guarded_state.h"
#include "paceline/training/optim/optimizer_shards.h"
#include "paceline/training/optim/parameter_home.h"
#include "paceline/training/optim/parameter_norms.h"
#include "paceline/training/optim/parameter_rows.h"
#include "paceline/training/optim/rules/kernels.h"
#include "paceline/training/optim/rules/tensor_blocks.h"

namespace paceline::optim {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Collective; before the first step. From now on step(), state() and set_state() are collective
  // too. Requires: the same parameters, with the same values, on every rank, and at every step the
  // same gradients (DistributedDataParallel's). The parameters move into the group's symmetric
  // memory, or into one copy a host. Does nothing in a group of one.
  void shard(std::shared_ptr<ProcessGroup> group, const ShardOptions& options = {});
  // While the result lives, this process may write to the parameters outside of a step, in any way,
  // if it writes the same values as every other rank. With one copy this is the only way to write
  // to them: any other write outside of a step ends the process. Collective if hosts divide the
  // parameters, which are whole meanwhile. Results of this function and of whole_parameters() may
  // be held several times at once, and longer than the optimizer.
  std::shared_ptr<void> writable_parameters() const;
  bool has_one_copy() const { return home_->has_one_copy(); }
  // If hosts divide the parameters: they are whole while the result lives, for reads that are not
  // operations of LibTorch. Collective, and so is the result's end. Null otherwise.
  std::shared_ptr<void> whole_parameters() const { return home_->whole(); }
  bool divides_hosts() const { return home_->divides_hosts(); }
  // Throws the error, if any, that has kept parameters from arriving from other hosts.
  void require_parameters() const { home_->require(); }

  // Tells how the model is divided, before the first step. From then on clip_grad_norm(),
  // grad_norm() and GradScaler are collective over `parts.model`, and step() with norms (LAMB,
  // LARS) is collective over `parts.layers`.
  void set_model_parts(const ModelParts& parts);
  // The ranks that together have the model; null: this rank has all of it.
  ProcessGroup* model_group() const { return parts_.model.get(); }
  // Throws Error(kInvalid), naming `caller`, if parameters are known to be a share of a model
  // (training/tensor/tensor_marks.h) and set_model_parts() has not described the rest.
  void require_model_parts(const char* caller) const;
  // Whether norms over the model count this rank's elements of the parameter.
  bool counts_in_norms(std::size_t parameter) const { return !is_copy_[parameter]; }

  // `before_step` is called at the beginning of each step; an empty function ends this.
  void set_before_step(std::function<void()> before_step) { before_step_ = std::move(before_step); }
  // Takes a step; parameters without a gradient stay as they are. DamagedState when the state or a
  // parameter is not what the previous step left.
  void step();
  // Drops the gradients, so that the next backward pass writes new ones instead of adding to zeros.
  void zero_grad() { rows_.drop_gradients(); }
  // The gradients that this rank has: whole ones or, if they are divided, those of its part.
  // Error(kInvalid) for gradients that are not dense float32, bfloat16 or float16 tensors on the
  // CPU.
  std::vector<OrderedGradient> gradients() const { return rows_.gradients(); }
  // The memory of these gradients, to change them in place; errors as above.
  std::vector<at::Tensor> gradient_memory() const { return rows_.gradient_memory(); }

  // Whether gradients are divided (ShardOptions::unit_bytes): each rank has those of its part,
  // which a backward pass brings (fully_shard.h). `.grad` stays undefined between passes, and
  // reading it is Error(kInvalid): clip and unscale through the optimizer. gradient_units() has
  // about the order in which a backward pass brings them. A parameter has a gradient if some rank
  // has one.
  bool shards_gradients() const { return gradient_divider_ != nullptr; }
  // Whether an optimizer of this process divides this parameter's gradient. Any thread.
  static bool divides_gradient_of(const at::Tensor& parameter) {
    return is_gradient_divided(parameter);
  }
  std::vector<GradientUnit> gradient_units() const { return rows_.gradient_units(); }
  // This rank's part of a unit's gradients, a float32 row. Its values are undefined until they are
  // written after zero_grad().
  at::Tensor gradient_part(std::size_t unit) { return rows_.gradient_part(unit); }
  bool has_gradient(std::size_t parameter) const { return rows_.has_gradient(parameter); }
  void set_has_gradient(std::size_t parameter) { rows_.set_has_gradient(parameter); }

  std::size_t num_groups() const { return learning_rates_.size(); }
  double learning_rate(std::size_t group = 0) const { return learning_rates_.at(group); }
  const std::vector<double>& learning_rates() const { return learning_rates_; }
  // Sets the rate of every group, or of one. Error(kInvalid) unless it is finite and at least 0.
  void set_learning_rate(double learning_rate);
  void set_learning_rate(std::size_t group, double learning_rate);
  // Sets the rate of each group. Error(kInvalid) unless there is one for each group.
  void set_learning_rates(const std::vector<double>& learning_rates);
  // A group's momentum, which Adam and its like call beta1.
  virtual double momentum(std::size_t group) const = 0;
  // Sets a group's momentum. Error(kInvalid) unless it is in [0, 1), and if the group has none.
  virtual void set_momentum(std::size_t group, double momentum) = 0;

  // The parameters of all groups, one group after another. Each tensor is listed once, even if it
  // was given twice (tied weights).
  const std::vector<at::Tensor>& parameters() const { return rows_.parameters(); }
  // The group of parameters()[parameter].
  std::size_t group_of(std::size_t parameter) const { return group_of_[parameter]; }

  // "adam", "adamw", "sgd", "lamb" or "lars".
  virtual const char* name() const = 0;
  // The whole state. Each name has one float32 tensor like each parameter: "exp_avg.3" belongs to
  // parameter 3, and so does "master.3" if that is a 16-bit parameter. The last tensor,
  // "num_steps", has the number of steps of each parameter. The tensors may or may not be the
  // optimizer's own. The learning rates are not included.
  NamedTensors state() const;
  // The parts of state() that this rank keeps, without its last tensor; not collective.
  std::vector<StatePart> state_parts() const { return rows_.state_parts(); }
  // The number of steps of each parameter: the last tensor of state(). Every rank keeps all of
  // them.
  std::pair<std::string, at::Tensor> num_steps() const;
  // Call it after the memory of state_parts() was written from outside: accepts the state, and the
  // parameters, as they are now. `num_steps`: the number of steps of each parameter.
  void adopt_state(const std::vector<std::int64_t>& num_steps);
  // The runs [first, last) of a parameter's elements, in the order of its memory, that this rank
  // has to handle so that all ranks together handle all elements. To save, these are all elements
  // or, if hosts divide the parameters, this rank's part.
  std::vector<std::pair<std::int64_t, std::int64_t>> elements_to_save(std::size_t parameter) const {
    return home_->to_save(parameter);
  }
  // As elements_to_save(), to load: all elements; with one copy a host, the parts of this rank and
  // its peers on other hosts; if hosts divide the parameters, this rank's part.
  std::vector<std::pair<std::int64_t, std::int64_t>> elements_to_load(std::size_t parameter) const {
    return home_->to_load(parameter);
  }
  // The address of element 0, in the order of its memory, where a load may write. First all ranks
  // call begin_loading(), when no rank reads the parameters; no rank may read them until all have
  // written.
  std::byte* parameter_to_write(std::size_t parameter) const { return home_->to_write(parameter); }
  void begin_loading() { home_->forget_other_hosts(); }
  // The ranks that the state is divided among; null if it is not divided.
  ProcessGroup* shard_group() const { return home_->group(); }
  // Takes over a state. Requires: tensors as state() returns them, with any values. Error(kInvalid)
  // when they are another optimizer's.
  void set_state(const NamedTensors& state);
  // Reads this rank's parts of the state and of the parameters. DamagedState when they changed
  // since the last step or set_state(). Local.
  void verify_state() const { guard_.verify(); }
  // The bytes that this rank keeps.
  std::size_t num_state_bytes() const { return rows_.num_state_bytes(); }
  std::size_t num_gradient_bytes() const;
  // Seconds that steps, and operations on divided parameters, have waited for the other ranks'
  // parts since the last call.
  double take_exposed_seconds();

 protected:
  // The parameters of one group.
  struct GroupTensors {
    std::vector<at::Tensor> parameters;
    double learning_rate = 0;
  };
  enum class Norms : std::uint8_t { kNone, kPerParameter };

  // `state_names`: for each name one zeroed tensor like each parameter is kept. Error(kInvalid) for
  // a parameter that is in two groups.
  Optimizer(const std::vector<GroupTensors>& groups, std::vector<std::string> state_names,
            Norms norms = Norms::kNone);
  // Adds one more group, as GroupedOptimizer::add_param_group() does.
  void add_group(const GroupTensors& group);
  bool has_state() const { return !rows_.state_names().empty(); }

  // Elements [0, count) of one parameter. state[i] belongs to state_names[i]; a kernel adds what it
  // read and wrote to `sums`, as kernels.h says.
  struct Slice {
    float* parameter;  // the master of a 16-bit parameter
    const float* gradient;
    float* const* state;
    WordSums* sums;
    std::int64_t count;
    std::int64_t step;  // of this parameter, from 1; steps without a gradient do not count
    std::size_t group;
  };

  // `norms`: square roots of measure()'s sums over the parameter; zeros without
  // Norms::kPerParameter.
  virtual void update(const Slice& slice, const NormPair& norms) const = 0;
  // Called first with Norms::kPerParameter: returns the sums of squares over these elements, of
  // which there are at most kBlock.
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
  std::unique_ptr<ParameterNorms> norms_;         // null: the rule needs none
  std::shared_ptr<const void> gradient_divider_;  // null: gradients are not divided
  std::vector<std::size_t> group_of_;             // [parameter]
  std::vector<double> learning_rates_;            // [group]
  std::vector<std::int64_t> num_steps_;           // [parameter]: steps in which it had a gradient
  ModelParts parts_;
  std::vector<bool> is_copy_;  // [parameter]
  double exposed_seconds_ = 0;
  std::function<void()> before_step_;
};

}  // namespace paceline::optim
