#pragma once

// The options of DistributedDataParallel, and the rules of join() (join.h).
//
// Thread safety: values.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>

#include "paceline/engine/core/job_logical_shards.h"

namespace paceline::optim {
class Optimizer;
struct ShardOptions;
}  // namespace paceline::optim

namespace paceline {

struct BucketLimits {
  std::size_t first_bytes = 1 << 20;
  std::size_t cap_bytes = 25 << 20;
  // A gradient of at least this size has a bucket of its own, which needs no additional memory.
  std::size_t alone_bytes = std::numeric_limits<std::size_t>::max();
};

// The reaction to a gradient on the CPU that is not finite. kReport checks gradients of less than
// 512 KiB, at almost no cost. It detects a loss that is not finite, because most gradients,
// including small ones, are then not finite either. It misses a single large gradient that is not
// finite, until the corrupted weights make the loss not finite. kError checks all gradients.
enum class NonFinite : std::uint8_t { kIgnore, kReport, kError };

struct DistributedDataParallelOptions {
  BucketLimits buckets = {};
  // If a parameter requires a gradient and gets none in a pass, every rank throws an error with the
  // parameter's name at the end of that pass, before any replica has taken a step.
  bool require_all_used = false;
  // Sends rank 0's buffers (BatchNorm's statistics) to all ranks at the end of each backward pass
  // that averages. So every rank evaluates the same model, and an evaluation communicates nothing:
  // ranks may have any number of samples, even none. If a forward pass that records gradients was
  // not followed by such a backward pass, rank 0's buffers are sent before the next forward pass
  // that is outside of no_sync() or records no gradients.
  bool broadcast_buffers = true;
  // Every parameter is compared between the replicas once in this many steps; a difference throws
  // DamagedState (engine/core/error.h). 0: never. The number must be the same on every rank. Unless
  // it is 0, each rank also compares its buffers before a pass with those at the end of the last
  // pass (KeptTensors). Set it to 0 for replicas that differ on purpose.
  std::int64_t check_replicas_every = 100;
  // kReport: rank 0 logs the rank and the parameter whose gradient is not finite. kError: every
  // rank throws Error(kInvalid), before any replica has taken a step.
  NonFinite non_finite = NonFinite::kReport;
  // The number of logical shards of each step, the same on every rank; 0: no logical shards. With
  // shards, the model has the same bits for every number of ranks that fits them
  // (docs/data_parallel.md), if each rank has the same number of threads. The loop must call
  // set_requires_gradient_sync(batch.ends_step) before each pass, as train::TrainingRun does.
  std::int64_t logical_shards = paceline::detail::job_logical_shards();
  // Set by fully_shard(): the optimizer that the wrapper divides among the ranks once they have
  // rank 0's parameters, and the options of this division; the wrapper adds the parameters' names.
  // The optimizer must outlive the wrapper. Null: the wrapper divides no optimizer.
  optim::Optimizer* optimizer = nullptr;
  std::shared_ptr<const optim::ShardOptions> shard = {};  // shared by copies of these options
};

}  // namespace paceline

namespace paceline::detail {

struct JoinRules {
  // An average divides by the number of all ranks; false: by the number of ranks with inputs.
  bool divide_by_initial_world_size = true;
  // When the inputs of a rank end before those of another rank, every rank throws Error(kInvalid);
  // for loops that have other collectives.
  bool throw_on_early_termination = false;
};

}  // namespace paceline::detail
