#pragma once

// Tracks which backward pass of a step is the current one, and the divisor of averages. Without
// logical shards (engine/core/logical_shards.h) a step ends with the first pass outside of
// no_sync(). With logical shards a step has one pass for each shard of this rank, and the last of
// these passes averages.
//
// Thread safety: none.

#include <cstdint>

#include <c10/core/Device.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/core/logical_shards.h"

namespace paceline {

class StepPasses {
 public:
  // Collective; `logical_shards`: 0 for none. Error(kInvalid) when the number of ranks does not
  // divide the shards, or when ranks have different numbers of shards or of threads; kUnsupported
  // for shards unless the engine computes the sums. `device`: the parameters' device.
  StepPasses(ProcessGroup& group, std::int64_t logical_shards, c10::Device device);

  bool has_shards() const { return logical_shards_ > 0; }
  std::int64_t logical_shards() const { return logical_shards_; }
  // With shards: the number of passes of this step that have ended.
  std::int64_t num_done() const { return num_done_; }

  void set_synchronize(bool synchronize) { synchronize_ = synchronize; }
  bool synchronizes() const { return synchronize_; }
  // Whether this pass averages gradients, or at least adds them to those of other shards. Otherwise
  // they accumulate in `.grad`.
  bool collects() const { return has_shards() || synchronize_; }
  bool averages() const { return has_shards() ? num_done_ + 1 == own_count_ : synchronize_; }
  bool begins_step() const { return has_shards() ? num_done_ == 0 : synchronize_; }
  // Error(kInvalid) when the loop's set_synchronize() does not match the position of this pass in
  // the step.
  void require_position() const;

  // For join(). Without shards the divisor is initially the number of ranks.
  void set_divisor(std::int64_t divisor) { divisor_ = divisor; }
  std::int64_t divisor() const { return has_shards() ? logical_shards_ : divisor_; }

  void end_pass() { num_done_ = averages() ? 0 : num_done_ + 1; }
  void forget() { num_done_ = 0; }

 private:
  const ProcessGroup& group_;
  const std::int64_t logical_shards_;
  std::int64_t own_count_ = 1;  // the number of shards of this rank
  std::int64_t num_done_ = 0;
  std::int64_t divisor_;
  bool synchronize_ = true;
};

}  // namespace paceline
