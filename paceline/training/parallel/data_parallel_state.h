#pragma once

// DataParallelState implements DistributedDataParallel; ShardBuffers is for logical shards.

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "paceline/training/parallel/distributed_data_parallel.h"
#include "paceline/training/parallel/reducer/lockstep.h"
#include "paceline/training/parallel/reducer/reducer.h"
#include "paceline/training/parallel/replica_guard.h"

namespace paceline {

// A module's buffers (BatchNorm's statistics) in a step with logical shards. The forward pass of
// every shard begins with the buffers from the beginning of the step, and the step ends with the
// buffers that the rank's first shard has produced. So rank 0 ends with the buffers of shard 0, and
// all ranks get them, for every number of ranks, even if parts of the model run again in the
// backward pass (activation_checkpoint()). A step has one forward pass for each shard.
//
// Thread safety: none.
class ShardBuffers {
 public:
  explicit ShardBuffers(std::vector<at::Tensor> buffers) : buffers_(std::move(buffers)) {}

  // Call begin_forward() and end_forward() around the forward pass of this rank's shard `index`,
  // and end_step() after the last backward pass.
  void begin_forward(std::int64_t index);
  void end_forward(std::int64_t index);
  void end_step();

 private:
  std::vector<at::Tensor> copy() const;
  void restore(const std::vector<at::Tensor>& values);

  std::vector<at::Tensor> buffers_;
  std::vector<at::Tensor> at_start_, after_first_;
  bool is_unfinished_ = false;  // a step has begun and has not ended
};

// The part of DistributedDataParallel that does not depend on the module's type.
class DataParallelState {
 public:
  DataParallelState(std::shared_ptr<torch::nn::Module> module, std::shared_ptr<ProcessGroup> group,
                    const DistributedDataParallelOptions& options);

  DataParallelState(const DataParallelState&) = delete;  // the reducer refers to it
  DataParallelState& operator=(const DataParallelState&) = delete;

  Reducer& reducer() const { return *reducer_; }
  ProcessGroup& group() { return *group_; }
  const std::shared_ptr<ProcessGroup>& shared_group() const { return group_; }

  // For join(): from now on each forward pass is announced through `inputs`; null: no pass is
  // announced.
  void set_uneven_inputs(UnevenInputs* inputs);
  // Collective: takes part in a pass of the other ranks for which this rank has no inputs.
  // `begins_step`: first drops the gradients of the previous step.
  void pass_without_inputs(const UnevenInputs::Others& others, bool begins_step);
  // Collective: copies the parameters and buffers of `rank` to every rank.
  void take_model_of(int rank);
  // Whether the parameters are divided among hosts or devices, so that forward passes communicate.
  bool divides_parameters() const;
  // Drops the gradients that the optimizer has received.
  void forget_gradients();

 private:
  friend class detail::ForwardPass;
  void before_forward(std::int64_t samples);
  void end_step();
  void require_shards_apart() const;
  void require_known_parameters() const;
  std::int64_t check_replicas_every() const;
  void require_one_copy(const std::vector<NamedParameter>& parameters) const;
  void shard_optimizer(const std::vector<NamedParameter>& parameters);
  void broadcast_parameters(int root);
  void broadcast_buffers(int root);
  void note_buffers();

  const std::shared_ptr<torch::nn::Module> module_;  // shared with the user
  const std::shared_ptr<ProcessGroup> group_;        // shared with the user
  const DistributedDataParallelOptions options_;
  std::vector<at::Tensor> parameters_;  // without duplicates
  std::vector<at::Tensor> buffers_;
  KeptTensors::Named named_buffers_;
  KeptTensors kept_buffers_;  // with hashes of the values that the last pass left
  UnevenInputs* uneven_inputs_ = nullptr;
  ShardBuffers shard_buffers_;
  bool has_trained_ = false;         // a forward pass with gradients has begun
  bool buffers_may_differ_ = false;  // all ranks have trained since the last broadcast
  std::unique_ptr<Reducer> reducer_;
};

}  // namespace paceline
