#pragma once

// What makes one gradient of all ranks' gradients, as a training loop sees it: Reducer, and
// whatever else shards or averages them.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/optim/optimizer.h"
#include "paceline/training/parallel/communication_hook.h"
#include "paceline/training/parallel/gradient_buckets.h"
#include "paceline/training/parallel/lockstep.h"
#include "paceline/training/parallel/pass_monitor.h"
#include "paceline/training/parallel/step_passes.h"
#include "paceline/training/tensor/libtorch_version.h"

namespace paceline {

class GradientSync {
 public:
  virtual ~GradientSync() = default;

  // While false, backward passes only accumulate into `.grad`.
  virtual void set_synchronize(bool synchronize) = 0;
  virtual bool synchronizes() const = 0;
  // Seconds that passes have spent waiting for communication since the last call: backward passes
  // for gradients, both for parameters that other hosts have.
  virtual double take_exposed_seconds() = 0;
  // So many steps were taken before, by a run that goes on: for what is said of a step.
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

// Averages gradients over the ranks while the backward pass still runs.
//
// Small gradients travel together: each has a place in a bucket, and buckets lie in the group's
// symmetric memory. When autograd has finished such a gradient, a hook copies it to its place and
// makes `.grad` that place. A large gradient is reduced where autograd left it, if that needs no
// copy (over sockets; on one host where tensors are symmetric, see SymmetricTensors); otherwise it
// goes into a bucket too. Where anything else refers to that memory, which autograd may still read,
// `.grad` becomes a copy of its own first. When a bucket is complete and all earlier ones are under
// way, its all-reduce, which averages, starts on the group's thread. At the end of the backward
// pass the calling thread waits for all of them.
//
// Buckets are planned at the end of the first backward pass, in the order in which rank 0's
// gradients came, and again when other parameters require gradients than before: such a pass
// communicates at its end only.
//
// A parameter without a gradient in a pass counts as zero where other ranks have one, and its
// `.grad` stays as it was where none has. Which ranks used it travels with the last bucket, in the
// pass's report (pass_monitor.h), as do hashes of the replicas (replica_guard.h), whose gradient
// was not finite, and the loss. A parameter that gets several gradients in a pass, from passes
// within it (checkpoint()), is averaged at its end.
//
// Gradients in CUDA memory are reduced by the group's backend for it, from buckets beside them, in
// the order of streams: at the end of the backward pass the current stream is behind all of them.
//
// With logical shards (engine/core/logical_shards.h) a step is one backward pass for each shard of
// this rank; the last one averages the sum over all shards of all ranks. A step's gradients replace
// those of the step before.
//
// Where an optimizer divides gradients among the ranks (ReducerOptions::optimizer), its units are
// the buckets, and each is reduced to the parts of the ranks that update them. Small gradients pass
// through a few slots of memory, which buckets take in turn; a gradient for which there is no slot
// yet stays where autograd left it. Once a bucket has left, its `.grad`s are undefined: what a pass
// holds at a time is a few buckets, not the model's gradients. (With logical shards, which a rank
// adds up first, each bucket has memory of its own.)
//
// A backward pass before the first call of before_forward() is an error: the module ran past the
// wrapper, which shares its buffers.
//
// Thread safety: backward passes of one reducer come one at a time, from one thread.

struct ReducerOptions {
  BucketLimits buckets;
  // A parameter that requires a gradient and gets none in a pass is an error on every rank, with
  // its name, at the end of that pass, before any replica has taken a step.
  bool require_all_used = false;
  // Every parameter of the replicas is compared in one of so many passes; 0: never.
  std::int64_t guard_passes = 0;
  // Which rank's gradient of which parameter was not finite is said, by rank 0; kError: it is an
  // Error(kInvalid) on every rank, before any replica has taken a step.
  NonFinite non_finite = NonFinite::kReport;
  std::int64_t logical_shards = 0;  // of a step, the same on every rank; 0: none
  // After each pass that averages, once all modules of the group that it reached are done; not in a
  // group of one without logical shards, nor after pass_without_inputs(). It may communicate.
  std::function<void()> at_end_of_step = {};
  // Throws when the module's buffers are not what the last pass left; for verify(). Empty: there
  // is nothing to look at.
  std::function<void()> verify_buffers = {};
  // Gets each rank's part of the averages, where it divides them. Must outlive the reducer; null:
  // every rank gets all of them.
  optim::Optimizer* optimizer = nullptr;
};

class Reducer : public GradientSync {
 public:
  // Collective. Requires: the same parameters on every rank; those that require gradients are
  // dense, and the optimizer's. Error(kInvalid) when they are not all on one device, kUnsupported
  // when the group's backend does not reach it. With logical
  // shards also kInvalid when the ranks do not fit them, or compute with different numbers of
  // threads, and kUnsupported unless the engine adds up.
  Reducer(std::shared_ptr<ProcessGroup> group, std::vector<NamedParameter> parameters,
          const ReducerOptions& options);
  // Takes the hooks out; gradients stay valid.
  ~Reducer() override;
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Before every forward pass, of so many samples. Nothing else to do, unless an exception ended
  // the backward pass before it: that pass is then forgotten once its buckets under way are there,
  // and all gradients are dropped, because some are averages and some are not. Collective in that
  // case, and all ranks must have come to it so: a rank whose own pass went on waits for gradients
  // that no longer come, which is an Error on every rank, and the group is finished. Does nothing
  // within a backward pass (recomputation).
  // With logical shards it drops the gradients of the step before.
  void before_forward(std::int64_t samples = 0);

  // Collective, between passes; null: the plain average again. Error(kInvalid), on every rank, when
  // the ranks' hooks have different names.
  void set_hook(std::shared_ptr<CommunicationHook> hook);
  bool has_hook() const { return hook_ != nullptr; }
  // For checkpoints, between passes; local. The tensors are the hook's own memory.
  HookState hook_state() const;
  // Error(kInvalid) that shows both when `words` are of a hook of another name.
  void require_own_hook(const optim::Words& words) const;
  // What hook_state() gave, of the same parameters: the hook goes on from there. Requires a hook.
  // The same words on every rank; error as above.
  void set_hook_state(HookState state);

  // For join(). Of the averages of the next pass: what those with inputs give is divided by it.
  void set_divisor(const UnevenInputs::Others& others);
  // Collective: this rank's part of a pass for which it has no inputs. Its gradients are then the
  // averages.
  void pass_without_inputs();

  // With logical shards: false for every pass of a step but its last one.
  void set_synchronize(bool synchronize) override { steps_.set_synchronize(synchronize); }
  bool synchronizes() const override { return steps_.synchronizes(); }
  // Call it before a backward pass with the loss that the pass begins with, times the weight of its
  // batch.
  void note_loss(double loss) { monitor_.note_loss(loss); }
  // The loss of the last pass that averaged and of those that led to it: the mean over the ranks,
  // or the logical shards, of what was noted, on every rank. It costs no call of its own.
  double step_loss() const { return monitor_.step_loss(); }
  double take_exposed_seconds() override;
  void begin_at(std::int64_t step) override { num_steps_ = step; }

  // Between passes; local. DamagedState when the module's buffers, or what the hook keeps, are not
  // what the last pass left. A pass looks at both itself before it uses them.
  void verify() const;
  // The number of steps that have averaged, or that begin_at() told.
  std::int64_t num_steps() const { return num_steps_; }

  // 0 before they are planned, and in a group of one without logical shards.
  std::size_t num_buckets() const { return buckets_.size(); }
  const StepPasses& steps() const { return steps_; }
  std::int64_t logical_shards() const { return steps_.logical_shards(); }
  ProcessGroup& group() const { return *group_; }

 private:
  struct Bucket {
    BucketPlan plan;
    at::Tensor flat;          // undefined for a gradient that is reduced where it lies
    std::size_t missing = 0;  // gradients that are not there yet
    WorkPtr work;
    // Of gradients that are divided:
    bool has_room = false;  // in this pass
    at::Tensor received;    // this rank's part; undefined: it comes to the optimizer's at once
    bool adds = false;      // it to what an earlier pass has brought
    int round = 0;          // of the hook's
    ShardSum shards;
    at::Tensor wide;  // travels for 16-bit gradients in logical shards: their sums are float32
  };
  struct Parameter {
    NamedParameter named;
    std::size_t bucket = 0;
    at::Tensor place;     // of its gradient, in the bucket; undefined outside
    at::Tensor stand_in;  // travels for a large gradient that this rank has not got
    GradientAccumulator accumulator;
    std::uintptr_t hook = 0;
    bool is_trained = false;  // requires a gradient, as far as buckets know
    bool is_ready = false;    // has its gradient of this pass
    bool is_used = false;     // has had one since the last pass that averaged
    bool is_late = false;     // gets several in a pass
  };

  // Whether gradients of this pass leave the rank, or are added to those of its other shards.
  bool is_alone() const { return group_->world_size() == 1 && !steps_.has_shards(); }

  // reducer.cpp: a backward pass.
  void on_gradient(std::size_t index, const at::Tensor& incoming);
  void begin_backward();
  void begin_pass();
  void note_order(std::size_t index, bool again);
  void expect_another(Parameter& parameter);
  void store_gradient(Parameter& parameter, const at::Tensor& incoming) const;
  void launch_complete_buckets();
  void launch(std::size_t index);
  at::Tensor leaving(const Bucket& bucket) const;
  void write_report();
  void end_backward();
  std::uint64_t version_of_parameters() const;
  void note_accumulated();
  void add_shard();
  void average();
  void require_all_ready();
  void complete_buckets();
  static void stand_in_for(Parameter& parameter);
  void wait_for_buckets();
  void finish(std::size_t index);
  void take_averages_of_others();
  bool compares_replicas() const;
  void forget_failed_pass();
  void forget_gradients();
  void drop_gradients();

  // reducer_plan.cpp: what buckets there are.
  void follow_requirements();
  void add_hook(std::size_t index);
  void forget_plan();
  void plan();
  std::vector<std::size_t> agreed_order();
  void make_bucket(BucketPlan plan);
  at::Tensor make_flat(std::int64_t count, at::ScalarType type) const;
  at::Tensor content(const Bucket& bucket) const;

  // reducer_parts.cpp: gradients that are divided among the ranks.
  bool divides() const { return options_.optimizer != nullptr && group_->world_size() > 1; }
  std::vector<BucketPlan> plan_units();
  void make_slots();
  bool has_room(std::size_t index) { return !is_unit(index) || make_room(index); }
  bool make_room(std::size_t index);
  bool is_unit(std::size_t bucket) const { return divides() && bucket < units_.size(); }
  at::Tensor part_of(std::size_t index);
  void launch_parts(std::size_t index);
  void finish_parts(std::size_t index);
  void complete_parts();
  void tell_optimizer();

  // reducer_hook.cpp: the communication hook.
  void prepare_hook();
  GradientBucket view_of(std::size_t index) const;
  std::string name_of(const GradientBucket& bucket, const KeptTensor& kept) const;
  std::vector<std::size_t> order_of_hook() const;
  void note_hook();
  WorkPtr start_round(std::size_t index);
  [[noreturn]] void fail_in_hook(std::size_t index, const char* why);

  // The name of a tensor of hook_tensors_ in messages.
  static constexpr const char* kHookTensor = "the communication hook's tensor";

  const std::shared_ptr<ProcessGroup> group_;  // owners: the user and this
  const ReducerOptions options_;
  const std::vector<NamedParameter> named_;
  const c10::Device device_;  // of all parameters
  StepPasses steps_;
  const bool large_need_no_copy_;             // gradients from kLargeGradientBytes on
  const std::shared_ptr<LaunchTurns> turns_;  // owners: this group's reducers
  PassMonitor monitor_;                       // its report is in the last bucket
  std::shared_ptr<CommunicationHook> hook_;   // owners: the user and this; null: the average
  std::optional<HookState> kept_by_hook_;     // until the next plan
  KeptTensors hook_tensors_;                  // as the last pass left them
  std::vector<Parameter> parameters_;
  bool is_planned_ = false;
  std::vector<std::size_t> order_;  // of gradients, in a pass without buckets
  std::vector<Bucket> buckets_;
  std::vector<optim::GradientUnit> units_;  // [bucket], but the last one: gradients are divided
  std::vector<at::Tensor> slots_;           // bytes; bucket i uses slot i modulo their number
  std::int64_t num_steps_ = 0;              // that have averaged, or that begin_at() told
  std::size_t next_bucket_ = 0;             // the first that is not under way
  PassCounter passes_;
  bool all_have_inputs_ = true;  // in this pass
  bool has_inputs_ = true;       // this rank has
  bool saw_forward_ = false;
  bool in_backward_ = false;
  double exposed_seconds_ = 0;
};

}  // namespace paceline
