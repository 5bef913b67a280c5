#pragma once

// How the gradients of a bucket get memory, are sent and are received. GradientPlacement averages
// them for every rank, DividedPlacement gives each rank the part that its optimizer updates,
// HookedPlacement leaves the average to a communication hook, and LogicalShardPlacement adds up a
// rank's logical shards before GradientPlacement or DividedPlacement reduces the sum.
//
// A placement does not depend on autograd: its user (reducer.h) stores gradients, starts buckets in
// order and waits for them.
//
// Thread safety: none.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/optim/metadata.h"
#include "paceline/training/optim/optimizer.h"
#include "paceline/training/optim/parameters/parameter_rows.h"
#include "paceline/training/parallel/communication_hook.h"
#include "paceline/training/parallel/reducer/gradient_buckets.h"
#include "paceline/training/parallel/reducer/pass_monitor.h"

namespace paceline {

// The tensors that a communication hook keeps between passes, by parameter, so that they outlive
// the buckets: checkpoints save them, and when buckets are planned again after parameters were
// frozen or unfrozen, the tensors are copied into the new plan.
//
// `owed` has the gradients that a rank's hook has not sent yet, so it differs between ranks. When a
// run resumes with another number of ranks, each rank begins with the mean of all `owed`, so that
// the amount that is still missing in the average of the gradients stays the same. A job of one
// rank sends nothing and keeps `owed` for later runs with more ranks.
struct HookState {
  // The hook's name and progress, and the order of the gradients in buckets, so that a resumed run
  // plans the same buckets. The same on every rank; empty without a hook.
  optim::Metadata words;
  optim::NamedTensors shared;  // "factor.PARAMETER": the same on every rank
  optim::NamedTensors owed;    // "error.PARAMETER": this rank's residuals
};

class GradientPlacement {
 public:
  // `buckets` must outlive this object.
  GradientPlacement(ProcessGroup& group, Buckets& buckets, const BucketLimits& limits)
      : group_(group), buckets_(buckets), limits_(limits) {}
  virtual ~GradientPlacement() = default;
  GradientPlacement(const GradientPlacement&) = delete;
  GradientPlacement& operator=(const GradientPlacement&) = delete;

  // Whether buckets are planned before a backward pass, not at the end of the first one.
  virtual bool plans_before_pass() const { return false; }
  // Whether the pass's report may share a bucket with gradients.
  virtual bool shares_bucket_with_report() const { return true; }
  // Collective: plans which gradients are sent together. `order`: the order in which gradients
  // arrived on this rank.
  virtual std::vector<BucketPlan> plan(std::vector<std::size_t> order);
  // Collective: allocates memory for the planned buckets, including the report's.
  virtual void make_memory();
  // Called before the plan is dropped.
  virtual void forget_plan() {}

  virtual void begin_pass() {}
  // Tries to get memory for the bucket's gradients; on success also stores the gradients that
  // arrived earlier.
  virtual bool make_room(std::size_t bucket) { return (void)bucket, true; }
  // Supplies substitutes for the gradients that this pass did not produce, so that every bucket is
  // complete. `go_on` starts the buckets that are complete.
  virtual void complete(const std::function<void()>& go_on);
  // Starts a complete bucket; `sent` is the tensor that is sent for it.
  virtual void start(std::size_t bucket, const at::Tensor& sent, std::int64_t divisor);
  // Waits for a bucket if it is under way, and takes its result. Returns true if another round has
  // started.
  bool finish(std::size_t bucket);
  // Called when all buckets are reduced. Sets `.grad` to the average for each parameter that only
  // other ranks used in this pass, as the pass's report shows. DividedPlacement instead tells the
  // optimizer which parameters any rank used.
  virtual void deliver(PassMonitor& monitor);
  // Called instead of start() and finish(): keeps the gradients of a logical shard that is not the
  // last one.
  virtual void add_shard() {}
  // Whether some averaged gradients have not been dropped yet and are not zeros.
  virtual bool has_gradients() const;
  // Drops the data of an unfinished step.
  virtual void forget() {}

  // The name and the state (HookState) of the communication hook, if there is one.
  virtual std::string hook_name() const { return "none"; }
  virtual bool keeps_replicas_equal() const { return true; }
  virtual HookState hook_state() const { return {}; }
  virtual void set_hook_state(HookState state) { (void)state; }
  // Hash the hook's tensors after a pass, and compare them before the next pass (KeptTensors).
  // `step`: the number of steps taken.
  virtual void note_hook() {}
  virtual void verify_hook(std::int64_t step) const { (void)step; }
  virtual void verify_hook_before_pass(std::int64_t step) { (void)step; }

 protected:
  // Takes the result of a bucket, and starts the bucket's next round if there is one.
  virtual void take(std::size_t bucket);
  at::Tensor make_flat(std::int64_t count, at::ScalarType type) const;

  ProcessGroup& group_;
  Buckets& buckets_;
  const BucketLimits limits_;
};

// Uses the optimizer's units as buckets, and reduce-scatters each bucket, so that each rank gets
// the part that it updates. Small gradients are copied to one of a few slots of memory, used in
// turn; a gradient whose bucket has no slot yet stays in autograd's memory. Once a bucket has been
// sent, its `.grad`s are undefined.
class DividedPlacement : public GradientPlacement {
 public:
  // The number of buckets that have memory at the same time: one is being filled, the others are
  // being reduced.
  static constexpr std::size_t kSlots = 4;

  // `optimizer` must outlive this object.
  DividedPlacement(ProcessGroup& group, Buckets& buckets, optim::Optimizer& optimizer,
                   const BucketLimits& limits, std::size_t most_slots)
      : GradientPlacement(group, buckets, limits), optimizer_(optimizer), most_slots_(most_slots) {}

  bool plans_before_pass() const override { return true; }
  bool shares_bucket_with_report() const override { return false; }
  std::vector<BucketPlan> plan(std::vector<std::size_t> order) override;
  void make_memory() override;
  void begin_pass() override;
  bool make_room(std::size_t bucket) override;
  void complete(const std::function<void()>& go_on) override;
  void start(std::size_t bucket, const at::Tensor& sent, std::int64_t divisor) override;
  void deliver(PassMonitor& monitor) override;
  bool has_gradients() const override;
  void forget() override;

 protected:
  void take(std::size_t bucket) override;

 private:
  struct Unit {
    optim::GradientUnit of_optimizer;
    bool has_room = false;  // the unit has memory in this pass
    // This rank's part before it is copied to the optimizer; undefined: the reduce-scatter writes
    // directly to the optimizer's memory.
    at::Tensor received;
    // `received` is added to the part from an earlier pass (accumulation), instead of replacing it.
    bool adds = false;
  };
  at::Tensor part_of(const Unit& unit);

  optim::Optimizer& optimizer_;
  const std::size_t most_slots_;
  std::vector<Unit> units_;  // [bucket], except for the last bucket, which has only the report
  std::vector<at::Tensor> slots_;  // as bytes; bucket i uses slot i modulo the number of slots
};

// Leaves the average to a communication hook. The hook's tensors outlive the buckets: they are
// copied from one plan to the next.
class HookedPlacement : public GradientPlacement {
 public:
  HookedPlacement(ProcessGroup& group, Buckets& buckets, const BucketLimits& limits,
                  std::shared_ptr<CommunicationHook> hook)
      : GradientPlacement(group, buckets, limits), hook_(std::move(hook)) {}

  // Every rank needs the report, so the hook must not process it.
  bool shares_bucket_with_report() const override { return false; }
  std::vector<BucketPlan> plan(std::vector<std::size_t> order) override;
  void make_memory() override;
  void forget_plan() override;
  void start(std::size_t bucket, const at::Tensor& sent, std::int64_t divisor) override;

  std::string hook_name() const override { return hook_->name(); }
  bool keeps_replicas_equal() const override { return hook_->keeps_replicas_equal(); }
  HookState hook_state() const override;
  void set_hook_state(HookState state) override;
  void note_hook() override;
  void verify_hook(std::int64_t step) const override;
  void verify_hook_before_pass(std::int64_t step) override;

 protected:
  void take(std::size_t bucket) override;

 private:
  GradientBucket view_of(std::size_t bucket) const;
  std::string name_of(const GradientBucket& bucket,
                      const CommunicationHook::KeptTensor& kept) const;
  std::vector<std::size_t> kept_order() const;
  void restore_kept(const std::vector<GradientBucket>& views);
  void start_round(std::size_t bucket);
  [[noreturn]] void fail_in_hook(std::size_t bucket, const char* why);

  const std::shared_ptr<CommunicationHook> hook_;  // shared with the user
  std::optional<HookState> kept_;  // from the last plan, or set by the user; used by the next plan
  KeptTensors tensors_;            // with hashes of the values that the last pass left
  std::vector<int> rounds_;        // [bucket]: the round in this pass
};

// Adds up the gradients of a rank's logical shards, 16-bit ones in float32, before `Kind` reduces
// the sum. In a DividedPlacement, every unit must then have its own slot.
template <class Kind>
class LogicalShardPlacement : public Kind {
 public:
  using Kind::Kind;

  void make_memory() override;
  void start(std::size_t bucket, const at::Tensor& sent, std::int64_t divisor) override;
  void add_shard() override;
  void forget() override;

 private:
  std::vector<ShardSum> sums_;  // [bucket]
};

extern template class LogicalShardPlacement<GradientPlacement>;
extern template class LogicalShardPlacement<DividedPlacement>;

}  // namespace paceline
