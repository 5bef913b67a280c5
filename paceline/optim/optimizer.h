#pragma once

// Optimizers that take a whole step in one pass over memory: parameter, gradient and state are read
// once and written once per element, vectorised, instead of a dozen tensor operations per
// parameter. The formulas are LibTorch's; a step equals LibTorch's own to rounding.
//
// Parameters must be dense float32 tensors on the CPU; a gradient in another memory layout is
// brought into the parameter's.
//
// Thread safety: none. A step uses LibTorch's intra-op threads.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace paceline::optim {

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Parameters without a gradient are left as they are.
  void step();
  // Drops the gradients, so that the next backward pass writes new ones instead of adding to zeros.
  void zero_grad();

  double learning_rate() const { return learning_rate_; }
  void set_learning_rate(double learning_rate) { learning_rate_ = learning_rate; }
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  std::int64_t num_steps() const { return num_steps_; }

  // "adam", "adamw" or "sgd".
  virtual const char* name() const = 0;
  // The state tensors, to be saved and restored in place: (name, tensor), for example ("exp_avg.3",
  // ...) of parameter 3.
  std::vector<std::pair<std::string, at::Tensor>> state() const;
  // After restoring the tensors of state().
  void set_num_steps(std::int64_t num_steps) { num_steps_ = num_steps; }

 protected:
  // `state_names`: one zeroed tensor like each parameter is kept per name.
  Optimizer(std::vector<at::Tensor> parameters, double learning_rate,
            std::vector<std::string> state_names);

  // One parameter's elements [0, count). state[i] belongs to state_names[i].
  struct Slice {
    float* parameter;
    const float* gradient;
    float* const* state;
    std::int64_t count;
  };
  virtual void update(const Slice& slice) const = 0;

 private:
  std::vector<at::Tensor> parameters_;
  double learning_rate_;
  std::vector<std::string> state_names_;
  std::vector<std::vector<at::Tensor>> state_;  // [name][parameter]
  std::int64_t num_steps_ = 0;
};

}  // namespace paceline::optim
