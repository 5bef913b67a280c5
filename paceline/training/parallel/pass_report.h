#pragma once

// What each rank says beside its gradients of a pass. It travels as float32 in the last bucket,
// where every rank has a place of its own and adds zero to the others': which parameters it used,
// of which module the pass was, the hash of a part of its replica (replica_guard.h), its first
// gradient that is not finite, and its loss.
//
// Thread safety: none.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/telemetry/step_log.h"

namespace paceline {

class PassReport {
 public:
  // What one rank says.
  struct Own {
    std::vector<bool> used;    // [parameter]
    std::uint64_t module = 0;  // below 2^16
    std::uint64_t hash = 0;
    std::optional<std::size_t> not_finite;  // the first such parameter
    double loss = 0;
  };
  struct NotFinite {
    int rank = 0;
    std::size_t parameter = 0;
  };

  // Values that it takes.
  static std::size_t size(std::size_t num_parameters, int num_ranks);

  PassReport() = default;
  // `place`: size() values of the bucket.
  PassReport(at::Tensor place, std::size_t num_parameters, int rank, int num_ranks);

  void write(const Own& own);
  // Says nothing: what the bucket brought last does not go out again.
  void clear() { place_.zero_(); }
  // Of all ranks, once the bucket has been averaged, with `divisor`.
  void read(std::int64_t divisor);
  bool is_used(std::size_t parameter) const { return values_[parameter] > 0; }
  bool has_equal_hashes() const;
  // By rank.
  std::vector<std::uint64_t> modules() const;
  // Of the lowest rank that has one.
  std::optional<NotFinite> not_finite() const;
  // The sum of all ranks' losses, with the same bits on every rank.
  double loss() const;

 private:
  const float* of_rank(int rank) const;
  std::uint64_t number_at(const float* values, std::size_t count) const;

  at::Tensor place_;
  std::size_t num_parameters_ = 0;
  int rank_ = 0, num_ranks_ = 1;
  std::int64_t divisor_ = 1;
  std::vector<float> values_;
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

  // A forward pass over so many samples begins; one that does not train is no part of a step.
  void begin_forward(std::int64_t samples, bool trains);
  // A pass that averages gradients has ended; `waited` of its seconds it waited for other ranks.
  // `version`: another one after each change of the parameters.
  void end_backward(double waited, std::uint64_t version);

 private:
  using Clock = std::chrono::steady_clock;

  bool begins_step(std::uint64_t version);

  const std::int64_t parameter_bytes_;
  std::optional<StepLog> log_;
  std::optional<std::uint64_t> version_;    // at the last pass
  int num_unchanged_ = 0;                   // passes in the whole run before the first change
  bool saw_change_ = false;                 // of the version
  std::optional<Clock::time_point> begin_;  // of the step under way
  std::int64_t samples_ = 0;                // of it
  double waited_ = 0;                       // in it
};

}  // namespace paceline
