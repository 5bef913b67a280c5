#pragma once

// An exponential moving average of the weights, which often evaluates better than the weights
// themselves: average = decay x average + (1 - decay) x weight after each step, in float32, as
// torch.optim.swa_utils.AveragedModel with get_ema_avg_fn(decay) computes it. The first update
// copies the weights.
//
//   ExponentialMovingAverage average(optimizer.parameters(), 0.999);
//   ... optimizer.step(); average.update();
//   { const auto swap = average.swap_in(); evaluate(...); }
//
// Every rank has the whole average, with the same bits if the parameters have the same bits. The
// average costs 4 bytes for each parameter, a copy of the weights while it is swapped in, and one
// more pass over the weights in each step.
//
// The average is guarded like an optimizer's state (docs/surviving.md): each update computes
// checksums of the average that it reads and of the one that it writes. An update that does not
// read what the previous update wrote throws DamagedState. The optimizer of the parameters does
// not treat a swap as a write: it keeps comparing them with the values that its last step wrote. On
// a CUDA device the average is not checked, because the host would have to wait for the device.
//
// Ownership: shares the parameters' tensors. Thread safety: none.

#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/training/optim/metadata.h"
#include "paceline/training/optim/optimizer.h"

namespace paceline::optim {

class ExponentialMovingAverage {
 public:
  // With `warm_up`, decay is at most (1 + t) / (10 + t) after t updates, so that the first weights
  // lose their influence sooner. Error(kInvalid) for a decay outside [0, 1] and parameters that are
  // not dense float32, bfloat16 or float16 tensors, all on the CPU or all on one CUDA device.
  explicit ExponentialMovingAverage(const std::vector<at::Tensor>& parameters, double decay = 0.999,
                                    bool warm_up = false);

  // Updates the average; call it after each step of the optimizer. Error(kInvalid) while the
  // average is swapped in; DamagedState when the average has changed since the previous update.
  void update();
  std::int64_t num_updates() const { return num_updates_; }

  // While this object lives, the parameters have the average's values; afterwards they get their
  // own values back, with the same bits.
  class Swap {
   public:
    explicit Swap(ExponentialMovingAverage& average);
    ~Swap();
    Swap(const Swap&) = delete;
    Swap& operator=(const Swap&) = delete;

   private:
    ExponentialMovingAverage& average_;
    std::vector<at::Tensor> weights_;
  };
  // Swaps the average in. Error(kInvalid) when it is already swapped in, and before the first
  // update.
  [[nodiscard]] Swap swap_in() { return Swap(*this); }
  bool is_swapped_in() const { return is_swapped_in_; }

  // "weight.3" is the average of parameter 3, in float32; the last tensor is "num_updates". The
  // weight tensors share the average's own memory.
  NamedTensors state() const;
  // The averaged parameters; "weight.3" belongs to parameters()[3].
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  // Loads a state. Requires: tensors like those from state(), with any values. Error(kInvalid) when
  // the state is from another model.
  void set_state(const NamedTensors& state);
  // Reads all averages. DamagedState when one has changed since the last update or set_state().
  void verify() const;
  // options() is for a checkpoint; require_compatible() throws Error(kInvalid), which lists the
  // differences.
  Metadata options() const;
  void require_compatible(const Metadata& options) const;

 private:
  bool is_checked() const;
  void require_sum(std::size_t parameter, std::uint32_t found) const;

  std::vector<at::Tensor> parameters_;
  const double decay_;
  const bool warm_up_;
  std::vector<at::Tensor> averages_;  // float32, in the memory order of the parameters
  std::vector<std::uint32_t> sums_;   // [average]: the checksum of its words
  std::int64_t num_updates_ = 0;
  bool is_swapped_in_ = false;
};

}  // namespace paceline::optim
