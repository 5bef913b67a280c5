#pragma once

// What the ranks tell each other about a backward pass beside its gradients: PassMonitor.
// PassCounter counts steps for `paceline top`.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/telemetry/step_log.h"
#include "paceline/training/parallel/replica_guard.h"

namespace paceline {

// What happens when a gradient is not finite. kReport looks at gradients of less than 512 KiB,
// which costs next to nothing. It finds a loss that is not finite, because then most gradients are
// not, small ones among them. It misses a single large gradient that is not finite, until the
// weights that it has spoilt make the loss so. kError looks at all gradients.
enum class NonFinite : std::uint8_t { kIgnore, kReport, kError };

// Sends each rank's report of a pass with the gradients, and judges those of all ranks. A report
// has the parameters that the rank used, the number of the module whose pass it was, the hash of a
// part of its replica (replica_guard.h), its first gradient that is not finite, and its loss. It
// travels as float32 in the last bucket, where every rank has a place of its own and adds zero to
// the others'.
//
// Thread safety: none.
class PassMonitor {
 public:
  // `parameters` must outlive it. `guard_passes`: as DistributedDataParallelOptions has it;
  // `module`: the number of the module, below 2^16, among those of its group.
  PassMonitor(ProcessGroup& group, const std::vector<NamedParameter>& parameters,
              NonFinite non_finite, std::int64_t guard_passes, std::uint64_t module);

  // The number of values of a report, and where it travels.
  std::int64_t size() const { return static_cast<std::int64_t>(values_.size()); }
  void set_place(at::Tensor place) { place_ = std::move(place); }

  // Checks whether a gradient of this rank is finite, unless an earlier one of the step is not.
  void note_gradient(std::size_t parameter);
  // Adds to this rank's loss of the step.
  void note_loss(double loss) { own_loss_ = own_loss_.value_or(0) + loss; }

  // Writes this rank's report. `used`: by parameter; `step`: the number of steps before this one;
  // `compares`: whether replicas must be equal in this pass.
  void write(const std::vector<bool>& used, std::int64_t step, bool compares);
  // Writes an empty report, so that the bucket's last contents are not sent again.
  void clear() { place_.zero_(); }
  // Once the report has come back: whether any rank used a parameter.
  bool is_used(std::size_t parameter);
  // Judges the reports of all ranks, whose sum was divided by `divisor`. Error(kInvalid) on every
  // rank when they were in passes of different modules, or for NonFinite::kError; DamagedState when
  // replicas differ.
  void read(std::int64_t divisor, std::int64_t step, bool compares);
  // Instead of write() and read(), where this rank is the only one.
  void judge_alone(std::int64_t step);
  // Forgets this rank's loss and gradients.
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
  const bool is_on_cpu_;  // elsewhere reading waits for the device
  const std::uint64_t module_;
  at::Tensor place_;           // of the report, in the last bucket
  std::vector<float> values_;  // of the report: [parameter], then each rank's own
  bool has_fetched_ = false;   // the report of this pass
  std::optional<ReplicaGuard> guard_;
  std::optional<std::size_t> not_finite_;  // the first of this rank's gradients in this step
  std::uint64_t num_non_finite_ = 0;       // steps with one
  std::optional<double> own_loss_;         // noted in this step
  double step_loss_ = 0;
};

// Counts the steps of a loop that does not count them itself, for `paceline top` and `paceline
// advise` (engine/telemetry/step_log.h). A step is what the loop does from one change of the
// module's parameters to the next: its first backward pass that averages gradients is counted,
// further ones before an optimizer has taken its step are not. So several losses, accumulation, and
// the passes of a GAN through both of its modules are one step an iteration (and one more in the
// whole run, where the first pass precedes the first change). Each evaluation of LBFGS's closure is
// a step. Of a program with several wrapped modules, those of the one that ended the first pass
// count.
//
// A step lasts from the end of the counted pass before, or from the first forward pass after an
// evaluation, to the end of its own.
//
// A program whose parameters never change has every pass counted, from the kPatience-th on.
//
// Cost: a look at the clock a forward pass, and that of StepLog::step() a step. Thread safety:
// none.
class PassCounter {
 public:
  static constexpr int kPatience = 8;

  explicit PassCounter(std::int64_t parameter_bytes) : parameter_bytes_(parameter_bytes) {}

  // A forward pass over `samples` begins; one that does not train is no part of a step.
  void begin_forward(std::int64_t samples, bool trains);
  // A pass that averages gradients has ended, after `waited` seconds of waiting for other ranks.
  // `version` differs after each change of the parameters.
  void end_backward(double waited, std::uint64_t version);

 private:
  using Clock = std::chrono::steady_clock;

  bool begins_step(std::uint64_t version);

  const std::int64_t parameter_bytes_;
  std::optional<StepLog> log_;
  std::optional<std::uint64_t> version_;  // at the last pass
  int num_unchanged_ = 0;                 // passes in the whole run before the first change
  bool saw_change_ = false;               // of the version
  // The step under way:
  std::optional<Clock::time_point> begin_;
  std::int64_t samples_ = 0;
  double waited_ = 0;
};

}  // namespace paceline
