#pragma once

// Optimizers that take a whole step in one pass over memory: parameter, gradient and state are read
// once per element, and parameter and state are written once, vectorised. Steps of Adam, AdamW and
// SGD equal LibTorch's up to rounding. Parameters come in groups, each with its own
// learning rate and options (update_rules.h). fully_shard() (training/parallel/fully_shard.h)
// divides the step among ranks; the parameters get the same bits as without it. A 16-bit parameter
// has a float32 master in the state. If a parameter differs from its rounded master, because it was
// loaded or averaged, the master takes the parameter's value. See docs/optimizers.md.
//
// Parameters must be dense float32, bfloat16 or float16 tensors on the CPU or on one CUDA device;
// gradients may have these types too. On a CUDA device a step consists of LibTorch's operations on
// lists of tensors, and memory is not checked for damage. Thread safety: none. A step on the CPU
// uses LibTorch's intra-op threads.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/process_group.h"

namespace paceline::optim {

// Describes which parameters are parts of larger ones, if a model is divided among ranks. Norms are
// then those of the whole model, with each parameter counted once. A plain value.
//
//   optimizer.set_model_parts(
//       {.model = ..., .layers = mesh.group("tp"), .divided = {weight}, ...});
//
// train::TrainingRun makes this value for a model whose layers report how they are divided.
struct ModelParts {
  // All ranks that together have one copy of the model; null: this rank has all of it.
  std::shared_ptr<ProcessGroup> model;
  // The ranks among which single parameters are divided; null: no parameter is divided.
  std::shared_ptr<ProcessGroup> layers;
  // Parameters that are divided among the ranks of `layers`: this rank has one part of each.
  // All of these ranks must list the same parameters; their order in parameters() must be the same.
  std::vector<at::Tensor> divided = {};
  // Parameters that another rank of `model` has with the same values and counts in norms, so that
  // this rank does not count them.
  std::vector<at::Tensor> copies = {};
};

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

class OptimizerCore;  // an optimizer as the library itself uses it
struct NormPair;
struct UpdateLists;
struct UpdateSlice;

class Optimizer {
 public:
  virtual ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // While the result lives, this process may write to the parameters outside of a step, by any
  // means, if it writes the same values as every other rank. With one copy per host, any other
  // write outside of a step ends the process. If hosts or devices divide the parameters, the call
  // is collective, and every host or device has all parameters while the result lives. Several
  // results of this function and of whole_parameters() may exist at once, and they may outlive the
  // optimizer.
  std::shared_ptr<void> writable_parameters() const;
  // If hosts or devices divide the parameters, all parameters are whole while the result lives, for
  // reads that are not operations of LibTorch; the call is collective, and so is the destruction of
  // the result. Otherwise returns null.
  std::shared_ptr<void> whole_parameters() const;

  // Sets how the model is divided among ranks; call it before the first step. Afterwards
  // clip_grad_norm(), grad_norm() and GradScaler are collective over `parts.model`, and step() with
  // norms (LAMB, LARS) is collective over `parts.layers`.
  void set_model_parts(const ModelParts& parts);

  // Takes a step; parameters without a gradient keep their values. DamagedState when the memory of
  // the state or of a parameter was damaged since the previous step (docs/surviving.md).
  void step();
  // Drops the gradients, so that the next backward pass writes new gradients instead of adding to
  // zeros.
  void zero_grad();

  std::size_t num_groups() const { return learning_rates().size(); }
  double learning_rate(std::size_t group = 0) const { return learning_rates().at(group); }
  const std::vector<double>& learning_rates() const;
  // Set the rate of all groups, or of one group. Error(kInvalid) unless the rate is finite and at
  // least 0.
  void set_learning_rate(double learning_rate);
  void set_learning_rate(std::size_t group, double learning_rate);
  // Sets the rate of each group. Error(kInvalid) unless there is one rate for each group.
  void set_learning_rates(const std::vector<double>& learning_rates);
  // A group's momentum; for Adam and similar optimizers the first of the betas.
  virtual double momentum(std::size_t group) const = 0;
  // Sets a group's momentum. Error(kInvalid) if it is not in [0, 1), or if it is above 0 and the
  // optimizer keeps no momentum for the group.
  virtual void set_momentum(std::size_t group, double momentum) = 0;

  // The parameters of all groups, in the order of the groups. Each tensor is listed once, even if
  // it was given twice (tied weights).
  const std::vector<at::Tensor>& parameters() const;
  // The group of parameters()[parameter].
  std::size_t group_of(std::size_t parameter) const;

  // "adam", "adamw", "sgd", "lamb", "lars" or the class of a wrapped LibTorch optimizer.
  virtual const char* name() const = 0;
  // The whole state. For each state name there is one float32 tensor for each parameter, with the
  // parameter's shape: "exp_avg.3" belongs to parameter 3, and so does "master.3" if that is a
  // 16-bit parameter. The last tensor, "num_steps", has the number of steps of each parameter. The
  // tensors may or may not share the optimizer's own memory. The learning rates are not included.
  NamedTensors state() const;
  // Loads a state. Requires: tensors like those from state(), with any values. Error(kInvalid) when
  // the state is from another optimizer.
  void set_state(const NamedTensors& state);
  // Reads all of the state and the parameters that this rank has. DamagedState when memory was
  // damaged since the last step or set_state(). Not collective.
  void verify_state() const;
  // The bytes of state that this rank keeps.
  std::size_t num_state_bytes() const;

 protected:
  // The parameters and the learning rate of one group.
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
  bool has_state() const;

  // Updates the elements of `slice`. `norms`: the square roots of measure()'s sums over the whole
  // parameter; zeros without Norms::kPerParameter.
  virtual void update(const UpdateSlice& slice, const NormPair& norms) const = 0;
  // Called before update() with Norms::kPerParameter. Returns the sums of squares over the elements
  // of `slice`, of which there are at most kBlock.
  virtual NormPair measure(const UpdateSlice& slice) const;
  // As above, on a CUDA device; measure() returns two float64 sums for each parameter.
  // Error(kUnsupported) for an optimizer that does not override them.
  virtual void update(const UpdateLists& lists) const;
  virtual std::vector<at::Tensor> measure(const UpdateLists& lists) const;
  // Takes a step of all parameters by itself, without update(), and returns true. The default does
  // nothing and returns false. `rates`: the learning rates, which it may change.
  virtual bool take_whole_step(std::vector<double>& rates) const;
  // The bytes of state that a derived class keeps in memory of its own.
  virtual std::size_t num_bytes_of_own_state() const;

 private:
  friend class OptimizerCore;

  std::unique_ptr<OptimizerCore> core_;
};

}  // namespace paceline::optim
