#pragma once

// Reducer averages gradients over the ranks while the backward pass is still running. GradientSync
// is the interface that training loops use.
//
// A hook on each parameter stores the parameter's gradient in a bucket (gradient_buckets.h). When a
// bucket is complete and all earlier ones have started, it is reduced on the group's thread, as the
// placement decides (gradient_placement.h). At the end of the pass the calling thread waits for all
// buckets. The last bucket also carries the pass's report (pass_monitor.h). training/STEP.md
// describes a step in detail.
//
// Thread safety: one backward pass of a reducer at a time, from one thread.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/device/streams.h"
#include "paceline/training/optim/optimizer.h"
#include "paceline/training/parallel/communication_hook.h"
#include "paceline/training/parallel/data_parallel_options.h"
#include "paceline/training/parallel/reducer/gradient_buckets.h"
#include "paceline/training/parallel/reducer/lockstep.h"
#include "paceline/training/parallel/reducer/pass_monitor.h"
#include "paceline/training/tensor/libtorch_version.h"

namespace paceline {

class GradientPlacement;
struct HookState;

class GradientSync {
 public:
  virtual ~GradientSync() = default;

  // While `synchronize` is false, backward passes only accumulate into `.grad`.
  virtual void set_synchronize(bool synchronize) = 0;
  virtual bool synchronizes() const = 0;
  // Seconds that passes have waited for communication since the last call: backward passes for
  // gradients, forward and backward passes for parameters from other hosts.
  virtual double take_exposed_seconds() = 0;
  // Call it in a resumed run that has already taken `step` steps; messages then number the next
  // steps from `step` on.
  virtual void begin_at(std::int64_t step) { (void)step; }
};

// Functions of the wrapper that the reducer calls.
struct ReducerCallbacks {
  // Called after each pass that averages gradients, once the reductions of all wrapped modules that
  // took part in the pass have ended. Not called in a group of one rank without logical shards, nor
  // after pass_without_inputs(). It may communicate.
  std::function<void()> at_end_of_step;
  // Throws when the module's buffers have changed since the last pass.
  std::function<void()> verify_buffers;
};

// Buckets are planned at the end of the first backward pass, in the order in which rank 0's
// gradients arrived, and planned again when the set of parameters that require gradients has
// changed. A pass that starts without a plan communicates only at its end. If an optimizer
// divides gradients, there is always a plan before the pass.
//
// A large gradient is reduced in place if it is in CUDA memory, if the group communicates only over
// sockets, or if tensors are symmetric (SymmetricTensors); otherwise it is stored in a bucket too.
//
// If a parameter has no gradient on this rank in a pass, its gradient counts as zero if another
// rank has one; if no rank has one, `.grad` does not change. If a parameter gets several gradients
// in a pass (activation_checkpoint()), their sum is averaged at the end of the pass.
//
// Gradients in CUDA memory are reduced in stream order, by the group's CUDA backend or on copies in
// host memory: a bucket's reduction begins when the streams have produced all of its gradients, and
// work that is queued on the current stream after the backward pass runs after all reductions. The
// host waits for the device only for step_loss(), and if this rank has not used a parameter,
// because it must then know whether another rank has used it.
//
// With logical shards (engine/core/logical_shards.h) a step is one backward pass for each shard of
// this rank; the last pass averages the sum over all shards of all ranks. The gradients of a step
// replace those of the previous step.
//
// A backward pass before the first call of before_forward() is an error, because the module was
// called directly instead of through the wrapper.
class Reducer : public GradientSync {
 public:
  // Collective. Requires: the same parameters on every rank; those that require gradients are
  // dense. `options.optimizer` gets each rank's part of the averages; null: every rank gets all
  // averages. Error(kInvalid) when the parameters are on several devices; kUnsupported when
  // LibTorch does not support their device; errors of StepPasses.
  Reducer(std::shared_ptr<ProcessGroup> group, std::vector<NamedParameter> parameters,
          const DistributedDataParallelOptions& options, ReducerCallbacks callbacks);
  // Removes the autograd hooks; gradients stay valid.
  ~Reducer() override;
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Call it before every forward pass, with the number of samples. If an exception ended the last
  // backward pass, it waits for the buckets that had started, resets that pass and drops all
  // gradients, because only some of them are averages. It is then collective: every rank must have
  // had the exception; a rank whose own pass continued waits for gradients that never arrive. In
  // that case every rank gets an Error, and the group can no longer be used. Within a backward pass
  // (recomputation) it does nothing. With logical shards it drops the gradients of the previous
  // step; Error(kInvalid) if no optimizer has used them.
  void before_forward(std::int64_t samples = 0);

  // Collective; call it between passes. Null restores the plain average. Error(kInvalid), on every
  // rank, for hooks with different names, and for a hook with logical shards or divided gradients.
  void set_hook(std::shared_ptr<CommunicationHook> hook);
  bool has_hook() const { return has_hook_; }
  // For checkpoints, between passes; not collective. The tensors share the hook's own memory.
  HookState hook_state() const;
  // Throws Error(kInvalid), which shows both names, when `words` are from another hook.
  void require_own_hook(const optim::Metadata& words) const;
  // Makes the hook continue from a result of hook_state() for the same parameters. Requires: a
  // hook, and the same words on every rank. Throws the errors of require_own_hook().
  void set_hook_state(HookState state);

  // For join(): the next pass divides the sum over the ranks with inputs by `others.divisor`.
  void set_divisor(const UnevenInputs::Others& others);
  // Collective: takes part in a pass for which this rank has no inputs. Afterwards this rank's
  // gradients are the averages. `begins_step`: first drops the gradients of the previous step.
  void pass_without_inputs(bool begins_step);
  // Drops the gradients of an unfinished step, and the averages of the last one.
  void forget_gradients();

  // With logical shards: set it to false before every backward pass of a step except the last one.
  void set_synchronize(bool synchronize) override { steps_.set_synchronize(synchronize); }
  bool synchronizes() const override { return steps_.synchronizes(); }
  // Call it before a backward pass, with the batch's loss (before loss scaling) times the batch's
  // weight.
  void note_loss(double loss) { monitor_.note_loss(loss); }
  // The loss of the last step, the same on every rank: the mean of the noted losses over the ranks
  // or the logical shards. It costs no extra communication.
  double step_loss() const { return monitor_.step_loss(); }
  double take_exposed_seconds() override;
  void begin_at(std::int64_t step) override { num_steps_ = step; }

  // Call it between passes; not collective. Throws DamagedState when the module's buffers or the
  // hook's tensors have changed since the last pass. Every pass makes the same checks before it
  // uses them.
  void verify() const;
  // The number of steps whose gradients were averaged, including the steps before begin_at().
  std::int64_t num_steps() const { return num_steps_; }

  // The number of buckets; 0 before they are planned, and in a group of one rank without logical
  // shards.
  std::size_t num_buckets() const { return buckets_.all.size(); }
  const StepPasses& steps() const { return steps_; }
  std::int64_t logical_shards() const { return steps_.logical_shards(); }
  ProcessGroup& group() const { return *group_; }

 private:
  // A hook on the gradient accumulator of a parameter.
  struct AutogradHook {
    GradientAccumulator accumulator;
    std::uintptr_t key = 0;
  };

  // Called before passes.
  void follow_requirements();
  bool has_hook(std::size_t index) const;
  void add_hook(std::size_t index);
  std::unique_ptr<GradientPlacement> make_placement(std::shared_ptr<CommunicationHook> hook);
  void plan();
  void forget_plan();
  void forget_failed_pass();
  void require_used_gradients() const;

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

  const std::shared_ptr<ProcessGroup> group_;  // shared with the user
  const DistributedDataParallelOptions options_;
  const ReducerCallbacks callbacks_;
  Buckets buckets_;
  std::vector<AutogradHook> hooks_;  // [parameter]
  const c10::Device device_;         // device of all parameters
  StreamJoin streams_;               // the streams that produced this pass's gradients
  StepPasses steps_;
  const bool communicates_;        // false in a group of one rank without logical shards
  const bool large_need_no_copy_;  // gradients of at least kAloneBytes can be reduced in place
  const std::shared_ptr<LaunchTurns> turns_;  // shared with the other reducers of this group
  PassMonitor monitor_;                       // its report is in the last bucket
  std::unique_ptr<GradientPlacement> placement_;
  bool has_hook_ = false;
  std::vector<std::size_t>
      order_;  // the order in which gradients arrived, in a pass without buckets
  PassCounter counter_;
  std::int64_t num_steps_ = 0;   // steps that have averaged, including the steps before begin_at()
  bool all_have_inputs_ = true;  // all ranks have inputs in this pass
  bool has_inputs_ = true;       // this rank has inputs in this pass
  bool saw_forward_ = false;
  bool in_backward_ = false;
  std::optional<std::uint64_t> averaged_version_;  // version_of_parameters() at the last average
  double exposed_seconds_ = 0;
};

// Error(kInvalid) for parameters whose gradients a reducer divides among the ranks.
void require_undivided(const ProcessGroup& group, const std::vector<NamedParameter>& parameters);

}  // namespace paceline
