#pragma once

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
// A parameter that got no gradient in a backward pass is an error at the end of that pass, on every
// rank, with its name: no replica has taken a step yet. Parameters that a model does not always use
// do not fit this class.
//
// Gradients in CUDA memory are reduced by the group's backend for it, from buckets beside them, in
// the order of streams: at the end of the backward pass the current stream is behind all of them.
//
// A backward pass before the first call of before_forward() is an error: the module ran past the
// wrapper, which shares its buffers.
//
// Thread safety: backward passes of one reducer come one at a time, from one thread.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/collectives/group/process_group.h"
#include "paceline/parallel/bucket_plan.h"
#include "paceline/parallel/gradient_sync.h"
#include "paceline/parallel/pass_counter.h"
#include "paceline/parallel/replica_check.h"
#include "paceline/tensor/libtorch_version.h"

namespace paceline {

class Reducer : public GradientSync {
 public:
  // Collective: allocates the buckets. Requires: the same parameters on every rank, all require
  // gradients and are dense. Error(kInvalid) when they are not all on one device, kUnsupported when
  // the group's backend does not reach it.
  Reducer(std::shared_ptr<ProcessGroup> group, std::vector<NamedParameter> parameters,
          const BucketLimits& limits);
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
  void before_forward(std::int64_t samples = 0);

  void set_synchronize(bool synchronize) override { synchronize_ = synchronize; }
  bool synchronizes() const override { return synchronize_; }
  double take_exposed_seconds() override;

  std::size_t num_buckets() const { return buckets_.size(); }

 private:
  struct Bucket {
    BucketPlan plan;
    at::Tensor flat;          // undefined for a gradient that is reduced where it lies
    std::size_t missing = 0;  // gradients that are not there yet
    WorkPtr work;
  };
  struct Parameter {
    NamedParameter named;
    std::size_t bucket = 0;
    at::Tensor place;  // of its gradient, in the bucket; undefined outside
    GradientAccumulator accumulator;
    std::uintptr_t hook = 0;
    bool ready = false;
  };

  void make_bucket(BucketPlan plan);
  at::Tensor make_flat(const BucketPlan& plan) const;
  void add_hook(std::size_t index);
  void on_gradient(std::size_t index, const at::Tensor& incoming);
  void begin_backward();
  void store_gradient(Parameter& parameter, const at::Tensor& incoming) const;
  at::Tensor content(const Bucket& bucket) const;
  void launch_complete_buckets();
  void end_backward();
  void forget_failed_pass();
  void wait_for_buckets();
  void require_all_ready();

  const std::shared_ptr<ProcessGroup> group_;  // owners: the user and this
  const c10::Device device_;                   // of all parameters
  std::vector<Parameter> parameters_;
  std::vector<Bucket> buckets_;
  std::size_t next_bucket_ = 0;  // the first that is not under way
  PassCounter passes_;
  bool saw_forward_ = false;
  bool in_backward_ = false;
  bool synchronize_ = true;
  double exposed_seconds_ = 0;
};

}  // namespace paceline
