#pragma once

// Optimizers that take a whole step in one pass over memory: parameter, gradient and state are read
// once and written once per element, vectorised, instead of a dozen tensor operations per
// parameter. The formulas are LibTorch's; a step equals LibTorch's own to rounding.
//
// Where all ranks take the same step, it can be divided among them (shard()): each rank keeps the
// state of one part of the elements, updates that part, and gets the others' parts from their
// ranks. This is stage 1 of ZeRO (Rajbhandari et al., 2020). The parameters have the same bits as
// without it.
//
// Parameters must be dense float32 tensors on the CPU; a gradient in another memory layout is
// brought into the parameter's.
//
// Thread safety: none. A step uses LibTorch's intra-op threads.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/collectives/group/process_group.h"
#include "paceline/tensor/flat_layout.h"

namespace paceline::optim {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// What one rank keeps of a tensor of state(): a run of its elements, in the order of its memory.
struct StatePart {
  std::string name;
  at::Tensor like;         // the parameter that the whole has the shape and the strides of
  at::Tensor elements;     // one row, the optimizer's own memory; may be empty
  std::int64_t first = 0;  // where they begin in the whole
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Collective; before the first step. From now on step(), state() and set_state() are collective
  // too. Requires: the same parameters, with the same values, on every rank, and at every step the
  // same gradients (DistributedDataParallel's). The parameters move into the group's symmetric
  // memory. Nothing happens in a group of one.
  void shard(std::shared_ptr<ProcessGroup> group);

  // Parameters without a gradient are left as they are.
  void step();
  // Drops the gradients, so that the next backward pass writes new ones instead of adding to zeros.
  void zero_grad();

  double learning_rate() const { return learning_rate_; }
  // Error(kInvalid) unless it is finite and at least 0.
  void set_learning_rate(double learning_rate);
  // Each tensor once, also one that was given twice (tied weights).
  const std::vector<at::Tensor>& parameters() const { return parameters_; }

  // "adam", "adamw" or "sgd".
  virtual const char* name() const = 0;
  // The whole state: one tensor like each parameter per name, "exp_avg.3" is of parameter 3, and
  // "num_steps", how many steps each parameter has taken. The tensors may or may not be the
  // optimizer's own. The learning rate is not in it.
  NamedTensors state() const;
  // As state(), without its last tensor, but what this rank keeps of it only; not collective.
  std::vector<StatePart> state_parts() const;
  // How many steps each parameter has taken: the last tensor of state(). Every rank keeps them all.
  std::pair<std::string, at::Tensor> num_steps() const;
  // Whose ranks the state is divided among; null when it is not.
  const ProcessGroup* shard_group() const { return group_.get(); }
  // Requires: what state() gave, with other values. Error(kInvalid) when it is another optimizer's.
  void set_state(const NamedTensors& state);
  // What this rank keeps.
  std::size_t num_state_bytes() const;
  // Seconds that steps have spent getting the other ranks' parts since the last call.
  double take_exposed_seconds() { return std::exchange(exposed_seconds_, 0.0); }

 protected:
  // `state_names`: one zeroed tensor like each parameter is kept per name.
  Optimizer(const std::vector<at::Tensor>& parameters, double learning_rate,
            std::vector<std::string> state_names);

  // One parameter's elements [0, count). state[i] belongs to state_names[i].
  struct Slice {
    float* parameter;
    const float* gradient;
    float* const* state;
    std::int64_t count;
    std::int64_t step;  // of this parameter, from 1: a step without a gradient does not count
  };
  virtual void update(const Slice& slice) const = 0;

 private:
  std::int64_t own_begin() const { return group_ ? layout_.part_count() * group_->rank() : 0; }
  std::pair<std::int64_t, std::int64_t> own_elements(std::size_t parameter) const;
  std::string state_name(std::size_t name, std::size_t parameter) const {
    return state_names_[name] + "." + std::to_string(parameter);
  }
  void allocate_state();
  bool has_stepped() const;
  void update_own_elements(std::size_t parameter);
  void exchange_parts();
  at::Tensor whole(const at::Tensor& own) const;

  std::vector<at::Tensor> parameters_;
  double learning_rate_ = 0;
  std::vector<std::string> state_names_;
  FlatLayout layout_;
  std::shared_ptr<ProcessGroup> group_;  // owners: the user and this; null: not sharded
  at::Tensor flat_parameters_;           // when sharded
  std::vector<at::Tensor> state_;        // [name]: this rank's part of the layout
  std::vector<std::int64_t> num_steps_;  // [parameter]: those that had a gradient
  double exposed_seconds_ = 0;
};

}  // namespace paceline::optim
