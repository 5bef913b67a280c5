#pragma once

// Averages gradients over the ranks while the backward pass still runs: Reducer; GradientSync is
// what a training loop knows of it.
//
// A hook on each parameter stores its gradient in a bucket (gradient_buckets.h). When a bucket is
// complete and all earlier ones are under way, it starts on the group's thread, as the placement
// says (gradient_placement.h); at the end of the pass the calling thread waits for all of them. The
// last bucket also carries the pass's report (pass_monitor.h). docs/life_of_a_step.md follows a
// step.
//
// Thread safety: backward passes of one reducer come one at a time, from one thread.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/optim/optimizer.h"
#include "paceline/training/parallel/communication_hook.h"
#include "paceline/training/parallel/reducer/gradient_buckets.h"
#include "paceline/training/parallel/reducer/gradient_placement.h"
#include "paceline/training/parallel/reducer/lockstep.h"
#include "paceline/training/parallel/reducer/pass_monitor.h"
#include "paceline/training/parallel/reducer/step_passes.h"
#include "paceline/training/tensor/libtorch_version.h"

namespace paceline {

class GradientSync {
 public:
  virtual ~GradientSync() = default;

  // While false, backward passes only accumulate into `.grad`.
  virtual void set_synchronize(bool synchronize) = 0;
  virtual bool synchronizes() const = 0;
  // Seconds that passes have spent waiting for communication since the last call: backward passes
  // for gradients, forward and backward passes for parameters that other hosts have.
  virtual double take_exposed_seconds() = 0;
  // A resumed run has taken `step` steps before; messages number the next ones from there.
  virtual void begin_at(std::int64_t step) { (void)step; }
};

// Gradients are not communicated while this object lives: they accumulate locally, and the first
// backward pass after it averages the sum. Forward and backward must both run inside.
class NoSync {
 public:
  explicit NoSync(GradientSync& sync) : sync_(sync), before_(sync.synchronizes()) {
    sync_.set_synchronize(false);
  }
  ~NoSync() { sync_.set_synchronize(before_); }
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  GradientSync& sync_;
  const bool before_;
};

struct DistributedDataParallelOptions {
  BucketLimits buckets;
  // A parameter that requires a gradient and gets none in a pass is an error on every rank, with
  // its name, at the end of that pass, before any replica has taken a step.
  bool require_all_used = false;
  // Rank 0's buffers (BatchNorm's statistics) to everybody at the end of each backward pass that
  // averages. So evaluation is with the same model on every rank and communicates nothing: ranks
  // may have any number of samples, also none. After forward passes that no such backward pass
  // followed, all ranks get them before the next one that is not within no_sync().
  bool broadcast_buffers = true;
  // Every parameter is compared between the replicas in one of so many steps, and a difference is a
  // DamagedState (engine/core/error.h); 0: never. The same on every rank. Buffers are compared on
  // each rank with what its last pass left, before the next one (KeptTensors); 0: not. For replicas
  // that differ on purpose, as between the averages of PeriodicAverager, take 0.
  std::int64_t guard_passes = 100;
  // Rank 0 logs which rank's gradient of which parameter was not finite; kError throws
  // Error(kInvalid) on every rank instead, before any replica has taken a step.
  NonFinite non_finite = NonFinite::kReport;
  // The number of logical shards of each step, the same on every rank; 0: none. The model then has
  // the same bits for every number of ranks that fits (engine/core/logical_shards.h), given the
  // same threads a rank. The loop calls set_synchronize(batch.ends_step) of the reducer before each
  // pass, as train::run_loop() does.
  std::int64_t logical_shards = job_logical_shards();
  // Divided among the ranks, once they have rank 0's parameters, as `shard` says (fully_shard.h);
  // its names are the module's. Must outlive the wrapper; null: the loop's optimizer is its own.
  optim::Optimizer* optimizer = nullptr;
  optim::ShardOptions shard = {};
};

// The wrapper's part in a pass.
struct ReducerCallbacks {
  // After each pass that averages, once all modules of the group that it reached are done; not in a
  // group of one without logical shards, nor after pass_without_inputs(). It may communicate.
  std::function<void()> at_end_of_step;
  // Throws when the module's buffers are not what the last pass left.
  std::function<void()> verify_buffers;
};

// Buckets are planned at the end of the first backward pass, in the order in which rank 0's
// gradients arrived, and again when other parameters require gradients than before: such a pass
// communicates at its end only. Where an optimizer divides gradients they are planned before the
// pass.
//
// A large gradient is reduced where autograd left it, if that needs no copy (over sockets; on one
// host where tensors are symmetric, see SymmetricTensors); otherwise it goes into a bucket too.
//
// A parameter without a gradient in a pass counts as zero where other ranks have one, and its
// `.grad` stays as it was where none has. A parameter that gets several gradients in a pass, from
// passes within it (checkpoint()), is averaged at its end.
//
// Gradients in CUDA memory are reduced by the group's backend for it, from buckets beside them, in
// the order of streams: at the end of the backward pass the current stream is behind all of them.
//
// With logical shards (engine/core/logical_shards.h) a step is one backward pass for each shard of
// this rank; the last one averages the sum over all shards of all ranks. A step's gradients replace
// those of the step before.
//
// A backward pass before the first call of before_forward() is an error: the module ran past the
// wrapper, which shares its buffers.
class Reducer : public GradientSync {
 public:
  // Collective. Requires: the same parameters on every rank; those that require gradients are
  // dense. `options.optimizer` gets each rank's part of the averages; null: every rank gets all of
  // them. Error(kInvalid) when the parameters are not all on one device, kUnsupported when the
  // group's backend does not reach it; errors of StepPasses.
  Reducer(std::shared_ptr<ProcessGroup> group, std::vector<NamedParameter> parameters,
          const DistributedDataParallelOptions& options, ReducerCallbacks callbacks);
  // Takes the hooks out; gradients stay valid.
  ~Reducer() override;
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Call it before every forward pass, of `samples` samples. If an exception ended the last
  // backward pass, it waits for the buckets that had started, forgets that pass and drops all
  // gradients, because some are averages and some are not. That is collective, and the same must be
  // so on every rank: a rank whose own pass went on waits for gradients that no longer come, which
  // is an Error on every rank, and the group is finished. Within a backward pass (recomputation) it
  // does nothing. With logical shards it drops the gradients of the step before.
  void before_forward(std::int64_t samples = 0);

  // Collective, between passes; null: the plain average again. Error(kInvalid), on every rank, when
  // the ranks' hooks have different names.
  void set_hook(std::shared_ptr<CommunicationHook> hook);
  bool has_hook() const { return has_hook_; }
  // For checkpoints, between passes; local. The tensors are the hook's own memory.
  HookState hook_state() const { return placement_->hook_state(); }
  // Error(kInvalid) that shows both names when `words` are of another hook.
  void require_own_hook(const optim::Words& words) const;
  // The hook goes on from what hook_state() gave, of the same parameters. Requires a hook, and the
  // same words on every rank; error as above.
  void set_hook_state(HookState state);

  // For join(): the next pass's averages divide the sum of the ranks with inputs by
  // `others.divisor`.
  void set_divisor(const UnevenInputs::Others& others);
  // Collective: takes part in a pass for which this rank has no inputs. Its gradients are then the
  // averages.
  void pass_without_inputs();

  // With logical shards: false for every pass of a step but its last one.
  void set_synchronize(bool synchronize) override { steps_.set_synchronize(synchronize); }
  bool synchronizes() const override { return steps_.synchronizes(); }
  // Call it before a backward pass with the loss that the pass begins with, times the weight of its
  // batch.
  void note_loss(double loss) { monitor_.note_loss(loss); }
  // The loss of the last step: the mean over the ranks, or the logical shards, of the losses that
  // were noted, on every rank. It costs no call of its own.
  double step_loss() const { return monitor_.step_loss(); }
  double take_exposed_seconds() override;
  void begin_at(std::int64_t step) override { num_steps_ = step; }

  // Between passes; local. Throws DamagedState when the module's buffers, or the hook's tensors,
  // are not as the last pass left them. A pass compares both itself before it uses them.
  void verify() const;
  // The number of steps that have averaged, those that begin_at() gave among them.
  std::int64_t num_steps() const { return num_steps_; }

  // 0 before they are planned, and in a group of one without logical shards.
  std::size_t num_buckets() const { return buckets_.all.size(); }
  const StepPasses& steps() const { return steps_; }
  std::int64_t logical_shards() const { return steps_.logical_shards(); }
  ProcessGroup& group() const { return *group_; }

 private:
  // A hook behind a parameter's accumulator.
  struct AutogradHook {
    GradientAccumulator accumulator;
    std::uintptr_t key = 0;
  };

  // Before passes.
  void follow_requirements();
  void add_hook(std::size_t index);
  std::unique_ptr<GradientPlacement> make_placement(std::shared_ptr<CommunicationHook> hook);
  void plan();
  void forget_plan();
  void forget_failed_pass();
  void forget_gradients();

  // In a backward pass.
  void on_gradient(std::size_t index, const at::Tensor& incoming);
  void begin_backward();
  void begin_pass();
  void expect_another(std::size_t index);
  void launch_complete_buckets();
  void launch(std::size_t index);
  void write_report();
  bool compares_replicas() const;
  void end_backward();
  void require_all_ready();
  void average();
  void add_shard();
  std::uint64_t version_of_parameters() const;

  const std::shared_ptr<ProcessGroup> group_;  // owners: the user and this
  const DistributedDataParallelOptions options_;
  const ReducerCallbacks callbacks_;
  Buckets buckets_;
  std::vector<AutogradHook> hooks_;  // [parameter]
  const c10::Device device_;         // of all parameters
  StepPasses steps_;
  const bool communicates_;                   // false: a rank alone, without logical shards
  const bool large_need_no_copy_;             // to be reduced: gradients of kAloneBytes
  const std::shared_ptr<LaunchTurns> turns_;  // owners: this group's reducers
  PassMonitor monitor_;                       // its report is in the last bucket
  std::unique_ptr<GradientPlacement> placement_;
  bool has_hook_ = false;
  std::vector<std::size_t> order_;  // in which gradients arrived, in a pass without buckets
  PassCounter counter_;
  std::int64_t num_steps_ = 0;   // steps that have averaged, with those that begin_at() gave
  bool all_have_inputs_ = true;  // all ranks have inputs in this pass
  bool has_inputs_ = true;       // this rank has
  bool saw_forward_ = false;
  bool in_backward_ = false;
  double exposed_seconds_ = 0;
};

}  // namespace paceline
