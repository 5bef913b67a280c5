#pragma once

// The backward passes of a step. StepPasses: which pass is the current one. PassMonitor: the
// reports about a pass that ranks exchange in addition to gradients. PassCounter: counts steps for
// `paceline top`.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/core/logical_shards.h"
#include "paceline/engine/telemetry/step_log.h"
#include "paceline/training/parallel/data_parallel_options.h"
#include "paceline/training/parallel/replica_guard.h"

namespace paceline {

// Tracks which backward pass of a step is the current one, and the divisor of averages. Without
// logical shards (engine/core/logical_shards.h) a step ends with the first pass outside of
// no_sync(). With logical shards a step has one pass for each shard of this rank, and the last of
// these passes averages.
//
// Thread safety: none.
class StepPasses {
 public:
  // Collective; `logical_shards`: 0 for none. Error(kInvalid) when the number of ranks does not fit
  // the shards, or when ranks have different numbers of shards or, with shards, of threads;
  // kUnsupported for shards unless the engine computes the sums. `device`: the parameters' device.
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

// Whether a dense tensor on the CPU has no infinities and no NaNs; true for integers.
bool is_finite(const at::Tensor& dense);

// Sends each rank's report of a pass together with the gradients, and evaluates the reports of all
// ranks. A report has the parameters that the rank used, the number of the module that the pass
// used, the hash of a part of the rank's replica (replica_guard.h), the rank's first gradient that
// is not finite, and its loss. Reports are sent as float32 in the last bucket. The values for the
// parameters are sums over all ranks; each other value is one rank's, and other ranks add zero.
//
// Thread safety: none.
class PassMonitor {
 public:
  // `parameters` must outlive this object. `check_replicas_every`: see
  // DistributedDataParallelOptions; `module`: the number of the module, below 2^16, among the
  // modules of its group.
  PassMonitor(ProcessGroup& group, const std::vector<NamedParameter>& parameters,
              NonFinite non_finite, std::int64_t check_replicas_every, std::uint64_t module);

  // The number of values of the reports, and the tensor in which they are sent.
  std::int64_t size() const { return static_cast<std::int64_t>(values_.size()); }
  void set_place(at::Tensor place) { place_ = std::move(place); }

  // Checks whether a gradient of this rank is finite, unless an earlier one in this step was not.
  void note_gradient(std::size_t parameter);
  // Adds to this rank's loss of the step.
  void note_loss(double loss) { own_loss_ = own_loss_.value_or(0) + loss; }

  // Writes this rank's report. `used`: for each parameter, whether the rank used it; `step`: the
  // number of steps before this one; `compares`: whether replicas must be equal in this pass.
  void write(const std::vector<bool>& used, std::int64_t step, bool compares);
  // Writes an empty report, so that the bucket's previous contents are not sent again.
  void clear() { place_.zero_(); }
  // Whether any rank used a parameter. Call it once the report has been reduced.
  bool is_used(std::size_t parameter);
  // Evaluates the reports of all ranks, whose sum was divided by `divisor`; on a CUDA device only
  // their losses. Error(kInvalid) on every rank when the ranks were in passes of different modules,
  // and for NonFinite::kError; DamagedState when replicas differ.
  void read(std::int64_t divisor, std::int64_t step, bool compares);
  // Replaces write() and read() in a group of one rank.
  void judge_alone(std::int64_t step);
  // Drops the loss and the gradient that this rank has noted.
  void begin_step();

  // The mean loss of the last step, with the same bits on every rank.
  double step_loss() const { return step_loss_; }

 private:
  void fetch();
  const float* of_rank(int rank) const;
  bool has_equal_hashes() const;
  void report_non_finite(int rank, std::size_t parameter, std::int64_t step, bool is_alone);

  ProcessGroup& group_;
  const std::vector<NamedParameter>& parameters_;
  const NonFinite non_finite_;
  const bool is_on_cpu_;  // on another device, reading would block until the device is done
  const std::uint64_t module_;
  at::Tensor place_;           // the report's place in the last bucket
  std::vector<float> values_;  // values of the reports: [parameter], then each rank's own values
  bool has_fetched_ = false;   // the report of this pass is in `values_`
  std::optional<ReplicaGuard> guard_;
  std::optional<std::size_t> not_finite_;  // the first gradient that was not finite in this step
  std::uint64_t num_non_finite_ = 0;       // the number of steps with such a gradient
  std::optional<double> own_loss_;         // the sum of the losses noted in this step
  double step_loss_ = 0;
};

// Counts the steps of a loop that does not count them itself, for `paceline top` and `paceline
// advise` (engine/telemetry/step_log.h). A step is everything that the loop does from one change of
// the module's parameters to the next: its first backward pass that averages gradients is counted;
// further passes before the optimizer's step are not. So several losses, gradient accumulation, and
// the passes of a GAN through both of its modules are one step per iteration. (A run counts one
// step more than iterations if its iterations have passes before and after the parameters change.)
// Each evaluation of LBFGS's closure is a step. In a program with several wrapped modules, only the
// steps of the module whose pass ended first are counted.
//
// A step lasts from the end of the previous counted pass, or from the first forward pass after an
// evaluation, to the end of its own counted pass.
//
// If a program's parameters never change, the first pass and all after pass kPatience are steps.
//
// Cost: one clock reading per forward pass, and one StepLog::step() per step. Thread safety: none.
class PassCounter {
 public:
  static constexpr int kPatience = 8;

  explicit PassCounter(std::int64_t parameter_bytes) : parameter_bytes_(parameter_bytes) {}

  // Call it at the beginning of a forward pass over `samples` samples; a pass that does not train
  // is not part of a step.
  void begin_forward(std::int64_t samples, bool trains);
  // Call it when a pass that averages gradients has ended, after `waited` seconds of waiting for
  // other ranks. `version` differs after each change of the parameters.
  void end_backward(double waited, std::uint64_t version);

 private:
  using Clock = std::chrono::steady_clock;

  bool begins_step(std::uint64_t version);

  const std::int64_t parameter_bytes_;
  std::optional<StepLog> log_;
  std::optional<std::uint64_t> version_;  // of the parameters, at the last pass
  int num_unchanged_ = 0;    // passes after the first one of the run and before the first change
  bool saw_change_ = false;  // the version has changed at least once
  // The current step:
  std::optional<Clock::time_point> begin_;
  std::int64_t samples_ = 0;
  double waited_ = 0;
};

}  // namespace paceline
