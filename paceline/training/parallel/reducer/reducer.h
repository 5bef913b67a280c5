#pragma once

// Reducer averages gradients over the ranks while the backward pass still runs. GradientSync is the
// part of it that training loops use.
//
// A hook on each parameter stores its gradient in a bucket (gradient_buckets.h). When a bucket is
// complete and all earlier ones are under way, it starts on the group's thread, as the placement
// decides (gradient_placement.h). At the end of the pass the calling thread waits for all buckets.
// The last bucket also carries the pass's report (pass_monitor.h). docs/life_of_a_step.md follows a
// step.
//
// Thread safety: one backward pass of a reducer at a time, from one thread.

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
  // Call it in a resumed run that has already taken `step` steps; messages number the next steps
  // from there.
  virtual void begin_at(std::int64_t step) { (void)step; }
};

// Gradients are not communicated while this object lives: they accumulate locally, and the first
// backward pass after it averages the sum. Both the forward and the backward pass must run inside.
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
  // A parameter that requires a gradient and gets none in a pass is an error on every rank, which
  // names it, at the end of that pass, before any replica has taken a step.
  bool require_all_used = false;
  // Sends rank 0's buffers (BatchNorm's statistics) to all ranks at the end of each backward pass
  // that averages. So every rank evaluates the same model, and evaluation communicates nothing:
  // ranks may have any number of samples, even none. After forward passes without such a backward
  // pass, all ranks get the buffers before the next forward pass outside of no_sync().
  bool broadcast_buffers = true;
  // Every parameter is compared between the replicas once in this many steps; a difference is a
  // DamagedState (engine/core/error.h). 0: never. It must be the same on every rank. Unless it is
  // 0, each rank also compares its buffers before a pass with the buffers that the last pass left
  // (KeptTensors). Set it to 0 for replicas that differ on purpose, as between the averages of
  // PeriodicAverager.
  std::int64_t guard_passes = 100;
  // Rank 0 logs the rank and the parameter whose gradient was not finite. kError instead throws
  // Error(kInvalid) on every rank, before any replica has taken a step.
  NonFinite non_finite = NonFinite::kReport;
  // The number of logical shards of each step, the same on every rank; 0: none. The model then has
  // the same bits for every number of ranks that fits (engine/core/logical_shards.h), if each rank
  // has the same number of threads. The loop calls set_synchronize(batch.ends_step) of the reducer
  // before each pass, as train::run_loop() does.
  std::int64_t logical_shards = job_logical_shards();
  // An optimizer to divide among the ranks, once they have rank 0's parameters, as `shard` says
  // (fully_shard.h); the wrapper takes the names from the module. It must outlive the wrapper.
  // Null: the loop's optimizer is not divided here.
  optim::Optimizer* optimizer = nullptr;
  optim::ShardOptions shard = {};
};

// Calls to the wrapper.
struct ReducerCallbacks {
  // Called after each pass that averages, once all modules of the group that the pass reached are
  // done; not in a group of one without logical shards, nor after pass_without_inputs(). It may
  // communicate.
  std::function<void()> at_end_of_step;
  // Throws when the module's buffers are not what the last pass left.
  std::function<void()> verify_buffers;
};

// Buckets are planned at the end of the first backward pass, in the order in which rank 0's
// gradients arrived, and again when other parameters require gradients than before. Such a pass
// communicates only at its end. If an optimizer divides gradients, buckets are planned before the
// pass.
//
// A large gradient is reduced in place if that needs no copy (over sockets; on one host if tensors
// are symmetric, see SymmetricTensors); otherwise it goes into a bucket too.
//
// A parameter without a gradient in a pass counts as zero if other ranks have one; if no rank has
// one, its `.grad` stays as it was. A parameter that gets several gradients in a pass, from passes
// within it (checkpoint()), is averaged at the end of the pass.
//
// Gradients in CUDA memory are reduced by the group's backend for CUDA, from buckets in separate
// memory, in stream order: at the end of the backward pass the current stream is behind all of
// them.
//
// With logical shards (engine/core/logical_shards.h) a step is one backward pass for each shard of
// this rank; the last pass averages the sum over all shards of all ranks. A step's gradients
// replace those of the previous step.
//
// A backward pass before the first call of before_forward() is an error: the module was called
// directly instead of through the wrapper.
class Reducer : public GradientSync {
 public:
  // Collective. Requires: the same parameters on every rank; those that require gradients are
  // dense. `options.optimizer` gets each rank's part of the averages; null: every rank gets all of
  // them. Error(kInvalid) when the parameters are on several devices, kUnsupported when the group
  // has no backend for their device; errors of StepPasses.
  Reducer(std::shared_ptr<ProcessGroup> group, std::vector<NamedParameter> parameters,
          const DistributedDataParallelOptions& options, ReducerCallbacks callbacks);
  // Removes the hooks; gradients stay valid.
  ~Reducer() override;
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Call it before every forward pass, of `samples` samples. If an exception ended the last
  // backward pass, it waits for the buckets that had started, forgets that pass and drops all
  // gradients, because only some of them are averages. That is collective, so every rank must have
  // had the exception: a rank whose own pass went on waits for gradients that never arrive, which
  // is an Error on every rank, and the group is finished. Within a backward pass (recomputation) it
  // does nothing. With logical shards it drops the gradients of the previous step.
  void before_forward(std::int64_t samples = 0);

  // Collective, between passes; null restores the plain average. Error(kInvalid), on every rank,
  // when the ranks' hooks have different names.
  void set_hook(std::shared_ptr<CommunicationHook> hook);
  bool has_hook() const { return has_hook_; }
  // For checkpoints, between passes; local. The tensors are the hook's own memory.
  HookState hook_state() const { return placement_->hook_state(); }
  // Throws Error(kInvalid) that shows both names when `words` are from another hook.
  void require_own_hook(const optim::Words& words) const;
  // Makes the hook continue from a result of hook_state() for the same parameters. Requires a hook,
  // and the same words on every rank; error as above.
  void set_hook_state(HookState state);

  // For join(): the next pass divides the sum over the ranks with inputs by `others.divisor`.
  void set_divisor(const UnevenInputs::Others& others);
  // Collective: takes part in a pass for which this rank has no inputs. Its gradients are then the
  // averages.
  void pass_without_inputs();

  // With logical shards: false for every pass of a step except the last one.
  void set_synchronize(bool synchronize) override { steps_.set_synchronize(synchronize); }
  bool synchronizes() const override { return steps_.synchronizes(); }
  // Call it before a backward pass with the loss that the pass starts from, times the weight of its
  // batch.
  void note_loss(double loss) { monitor_.note_loss(loss); }
  // The loss of the last step, on every rank: the mean of the noted losses over the ranks or the
  // logical shards. It costs no extra communication.
  double step_loss() const { return monitor_.step_loss(); }
  double take_exposed_seconds() override;
  void begin_at(std::int64_t step) override { num_steps_ = step; }

  // Between passes; local. Throws DamagedState when the module's buffers, or the hook's tensors,
  // are not as the last pass left them. Every pass also compares both before it uses them.
  void verify() const;
  // The number of steps that have averaged, including those of begin_at().
  std::int64_t num_steps() const { return num_steps_; }

  // 0 before buckets are planned, and in a group of one without logical shards.
  std::size_t num_buckets() const { return buckets_.all.size(); }
  const StepPasses& steps() const { return steps_; }
  std::int64_t logical_shards() const { return steps_.logical_shards(); }
  ProcessGroup& group() const { return *group_; }

 private:
  // A hook on a parameter's accumulator.
  struct AutogradHook {
    GradientAccumulator accumulator;
    std::uintptr_t key = 0;
  };

  // Called before passes.
  void follow_requirements();
  void add_hook(std::size_t index);
  std::unique_ptr<GradientPlacement> make_placement(std::shared_ptr<CommunicationHook> hook);
  void plan();
  void forget_plan();
  void forget_failed_pass();
  void forget_gradients();

  // Called in a backward pass.
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
  const bool communicates_;        // false: a group of one without logical shards
  const bool large_need_no_copy_;  // gradients of at least kAloneBytes can be reduced in place
  const std::shared_ptr<LaunchTurns> turns_;  // owners: this group's reducers
  PassMonitor monitor_;                       // its report is in the last bucket
  std::unique_ptr<GradientPlacement> placement_;
  bool has_hook_ = false;
  std::vector<std::size_t>
      order_;  // the order in which gradients arrived, in a pass without buckets
  PassCounter counter_;
  std::int64_t num_steps_ = 0;   // steps that have averaged, including those of begin_at()
  bool all_have_inputs_ = true;  // all ranks have inputs in this pass
  bool has_inputs_ = true;       // this rank has inputs in this pass
  bool saw_forward_ = false;
  bool in_backward_ = false;
  double exposed_seconds_ = 0;
};

}  // namespace paceline
