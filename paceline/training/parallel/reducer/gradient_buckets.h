#pragma once

// A module's gradients, and the buckets of gradients that are reduced together.
//
// Buckets are filled in the order in which gradients become ready. The first bucket is small, so
// that communication begins early in the backward pass; the others have up to about `cap_bytes`. As
// in PyTorch's DistributedDataParallel, a bucket is closed once it has reached its limit. All
// gradients of a bucket have the same element type.
//
// Thread safety: none, except for plan_buckets(), which is pure.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/parallel/data_parallel_options.h"
#include "paceline/training/parallel/replica_guard.h"
#include "paceline/training/tensor/tensor_view.h"

namespace paceline {

struct BucketPlan {
  FlatLayout layout;                    // layout of the gradients of `parameters`, in that order
  std::vector<std::size_t> parameters;  // indices into all parameters
  bool is_alone = false;                // the bucket has one gradient, of at least alone_bytes
};

// `order`: indices into `parameters`, each at most once. Parameters that are not in `order` get no
// bucket.
std::vector<BucketPlan> plan_buckets(const std::vector<at::Tensor>& parameters,
                                     const std::vector<std::size_t>& order,
                                     const BucketLimits& limits);

// The gradient of one parameter.
struct Gradient {
  at::Tensor parameter;
  std::size_t bucket = 0;
  at::Tensor place;  // view of the bucket; undefined: the gradient is reduced in place
  // The tensor to send if `place` is undefined and this pass did not produce the gradient.
  at::Tensor stand_in;
  bool is_trained = false;  // the parameter required a gradient when that was last checked
  bool is_ready = false;    // this pass has produced the gradient
  bool is_used = false;     // a pass since the last average has produced the gradient
  bool is_late = false;     // a pass produces the gradient several times (activation_checkpoint())

  // Moves `.grad` to `place`, unless autograd has accumulated it there. Without a `place`, `.grad`
  // is replaced by a copy if anything else refers to its memory. `incoming`: the tensor that
  // autograd passed to the accumulator; it may be undefined.
  void store(const at::Tensor& incoming);
  // For a gradient that this pass did not produce: contributes the value that earlier passes
  // accumulated, or zeros. `.grad` is moved out of the bucket first, so that it keeps its value if
  // no rank has used the parameter.
  void stand_in_for_missing();
};

struct Bucket {
  BucketPlan plan;
  at::Tensor flat;          // undefined for a gradient that is reduced in place
  at::Tensor wide;          // sent instead of `flat` if sums have a wider type than gradients
  std::size_t missing = 0;  // the number of gradients that have not arrived in this pass
  WorkPtr work;             // null: the bucket is not under way
};

struct Buckets {
  std::vector<NamedParameter> parameters;
  std::vector<Gradient> gradients;  // [parameter]
  std::vector<Bucket> all;          // the last one also carries the pass's report
  std::size_t next = 0;             // index of the first bucket that has not started in this pass
  bool is_planned = false;          // the buckets have been planned and have memory

  explicit Buckets(std::vector<NamedParameter> named);

  // Creates the buckets of a plan, without memory.
  void plan(std::vector<BucketPlan> plans);
  // Drops the buckets; gradients keep their memory.
  void forget_plan();
  // Gives a bucket its memory, and sets the place of each of its gradients.
  void lay_out(Bucket& bucket, const at::Tensor& flat);
  void begin_pass();
  // The tensor with a bucket's gradients: `flat`, or a gradient that is reduced in place.
  at::Tensor content(const Bucket& bucket) const;
  // The tensor to send, once the bucket is complete.
  at::Tensor tensor_to_send(const Bucket& bucket) const;
  // Leaves the `.grad` of every trained parameter undefined.
  void drop_gradients();
};

// The sum of one bucket's gradients over the logical shards of a rank
// (engine/core/logical_shards.h), in the order of the engine's fixed tree: a binary counter of
// partial sums, each over 2^k neighbouring shards, so that at most log2(shards) + 1 of them are
// kept.
class ShardSum {
 public:
  // Adds the gradients of a shard that is not the last one. `may_keep`: nothing else will use their
  // memory from now on, so they are kept without a copy.
  void add(const at::Tensor& gradients, bool may_keep);
  // Replaces the gradients of the last shard by the sum over all shards; then a new step begins.
  void finish(const at::Tensor& gradients);
  // Drops an unfinished sum.
  void clear() { count_ = 0; }

 private:
  std::vector<at::Tensor> levels_;  // [k]: the sum of 2^k shards, if bit k of count_ is set
  std::uint64_t count_ = 0;
};

}  // namespace paceline
