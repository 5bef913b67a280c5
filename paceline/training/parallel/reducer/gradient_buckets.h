#pragma once

// A module's gradients and the buckets in which they travel together.
//
// Buckets are filled in the order in which gradients become ready. The first bucket is small, so
// that communication begins early in the backward pass; the others are up to `cap_bytes`. As in
// PyTorch's DistributedDataParallel, a bucket is closed once it has reached its limit. A bucket has
// one type.
//
// Thread safety: none; plan_buckets() is pure.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/parallel/replica_guard.h"
#include "paceline/training/tensor/tensor_view.h"

namespace paceline {

struct BucketLimits {
  std::size_t first_bytes = 1 << 20;
  std::size_t cap_bytes = 25 << 20;
  // A gradient of at least this size is a bucket of its own, which needs no other memory.
  std::size_t alone_bytes = std::numeric_limits<std::size_t>::max();
};

struct BucketPlan {
  FlatLayout layout;                    // of the gradients of `parameters`, in that order
  std::vector<std::size_t> parameters;  // indices into all parameters
  bool is_alone = false;                // one gradient of at least alone_bytes
};

// `order`: indices into `parameters`, each at most once. Parameters that are not in it get no
// place.
std::vector<BucketPlan> plan_buckets(const std::vector<at::Tensor>& parameters,
                                     const std::vector<std::size_t>& order,
                                     const BucketLimits& limits);

// The gradient of one parameter.
struct Gradient {
  at::Tensor parameter;
  std::size_t bucket = 0;
  at::Tensor place;  // in the bucket; undefined for a gradient that is reduced in place
  // Sent instead of a gradient that has no place and that this pass did not produce.
  at::Tensor stand_in;
  bool is_trained = false;  // the parameter required a gradient when last asked
  bool is_ready = false;    // this pass has produced it
  bool is_used = false;     // a pass since the last average has produced it
  bool is_late = false;     // a pass produces it several times (checkpoint())

  // Moves `.grad` to the place, unless it has accumulated there. Without a place, `.grad` becomes a
  // copy of its own if anything else refers to its memory. `incoming`: the tensor that autograd
  // gave to the accumulator; it may be undefined.
  void store(const at::Tensor& incoming);
  // For a gradient that this pass did not produce: makes it contribute what earlier passes
  // accumulated, or zeros. `.grad` is moved out of the bucket first, so that it survives if no rank
  // has used the parameter.
  void stand_in_for_missing();
};

struct Bucket {
  BucketPlan plan;
  at::Tensor flat;          // undefined for a gradient that is reduced in place
  at::Tensor wide;          // sent instead of `flat` if sums have more bits than gradients
  std::size_t missing = 0;  // gradients that have not arrived in this pass
  WorkPtr work;             // null: not under way
};

struct Buckets {
  std::vector<NamedParameter> parameters;
  std::vector<Gradient> gradients;  // [parameter]
  std::vector<Bucket> all;          // the last one also carries the pass's report
  std::size_t next = 0;             // the first bucket that has not started in this pass
  bool is_planned = false;          // the buckets have memory

  explicit Buckets(std::vector<NamedParameter> named);

  // Makes the buckets of a plan, without memory.
  void plan(std::vector<BucketPlan> plans);
  // Drops the buckets; gradients keep their memory.
  void forget_plan();
  // Gives a bucket its memory, and each of its gradients its place.
  void lay_out(Bucket& bucket, const at::Tensor& flat);
  void begin_pass();
  // The tensor that has a bucket's gradients: `flat`, or a gradient that is reduced in place.
  at::Tensor content(const Bucket& bucket) const;
  // The tensor to send, once the bucket is complete.
  at::Tensor leaving(const Bucket& bucket) const;
  // Leaves every `.grad` undefined.
  void drop_gradients();
};

// The sum of one bucket's gradients over the logical shards of a rank
// (engine/core/logical_shards.h), in the order of the engine's fixed tree: a binary counter of
// partial sums, each of 2^k neighbouring shards, so that no more than log2(shards) + 1 of them are
// kept.
class ShardSum {
 public:
  // Adds the gradients of a shard that is not the last. `may_keep`: nothing else will use their
  // memory from now on; otherwise they are copied.
  void add(const at::Tensor& gradients, bool may_keep);
  // Turns the gradients of the last shard into the sum of all shards; then a new step begins.
  void finish(const at::Tensor& gradients);
  // Forgets an unfinished sum.
  void clear() { count_ = 0; }

 private:
  std::vector<at::Tensor> levels_;  // [k]: the sum of 2^k shards where bit k of count_ is set
  std::uint64_t count_ = 0;
};

}  // namespace paceline
