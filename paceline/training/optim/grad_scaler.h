#pragma once

// Loss scaling for float16, as in torch.amp.GradScaler: the loss is multiplied by a factor (the
// scale), so that small gradients do not become 0. If a gradient is not finite, the step is skipped
// and the scale is halved; after growth_interval good steps it is doubled.
//
//   scaler.scale(loss).backward();
//   scaler.unscale(optimizer);  // only to clip the gradients
//   scaler.step(optimizer);
//   scaler.update();
//
// All ranks must skip the same steps. With DistributedDataParallel they do, because averaged
// gradients are the same on every rank. If gradients differ between ranks, pass the group: then
// each unscale(), including the one inside step(), is collective, with one all-reduce of four
// bytes. If the optimizer divides gradients among the ranks (fully_shard.h), or knows that the
// model is divided (Optimizer::set_model_parts), unscale() is collective even without a group.
//
// unscale() divides float32 and bfloat16 gradients by the scale, in place. A float16 gradient is
// replaced by a float32 tensor until zero_grad(), because its small elements would be lost.
//
// The scale and the count of good steps are stored twice; if the copies differ when they are used,
// DamagedState is thrown.
//
// Thread safety: none.

#include <cstdint>
#include <map>
#include <memory>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/optim/metadata.h"
#include "paceline/training/optim/optimizer.h"

namespace paceline::optim {

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  std::int64_t growth_interval = 2000;
};

class GradScaler {
 public:
  // Error(kInvalid) unless init_scale > 0, growth_factor > 1, backoff_factor in (0, 1) and
  // growth_interval > 0. `group`: null when all ranks have the same gradients.
  explicit GradScaler(const GradScalerOptions& options = {},
                      std::shared_ptr<ProcessGroup> group = nullptr);

  // Multiplies the loss by the scale. DamagedState when the two stored copies differ; the other
  // functions that use the scale throw it too.
  at::Tensor scale(const at::Tensor& loss) const;
  // Divides the optimizer's gradients by the scale. Error(kInvalid) at a second call between
  // updates.
  void unscale(Optimizer& optimizer);
  // Calls unscale() if that has not been done, then takes the optimizer's step. Returns false, and
  // takes no step, if a gradient is not finite. Error(kInvalid) at a second call between updates.
  bool step(Optimizer& optimizer);
  // Sets the scale for the next pass. Error(kInvalid) when no gradients have been unscaled.
  void update();

  double loss_scale() const { return kept().scale; }
  std::int64_t growth_tracker() const { return kept().growth_tracker; }

  // The scale, the number of good steps since it last changed, and all options but init_scale.
  Metadata state() const;
  // Throws Error(kInvalid), which lists the differences, when `state` is from a scaler with other
  // options; init_scale may differ.
  void require_compatible(const Metadata& state) const;
  void set_state(const Metadata& state);

 private:
  struct Seen {
    bool found_nonfinite = false;
    bool stepped = false;
  };
  bool divide(const Optimizer& optimizer) const;

  const GradScalerOptions options_;
  const std::shared_ptr<ProcessGroup> group_;  // shared with the user; may be null
  // The values that last from one update to the next.
  struct Kept {
    float scale = 0;
    std::int64_t growth_tracker = 0;
    bool operator==(const Kept&) const = default;
  };
  const Kept& kept() const;
  void keep(const Kept& kept) { kept_ = copy_ = kept; }

  Kept kept_;
  Kept copy_;
  std::map<const Optimizer*, Seen> seen_;  // since the last update
};

}  // namespace paceline::optim
