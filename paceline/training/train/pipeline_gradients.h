#pragma once

// The gradients of a model in stages: each batch of a replica passes through the replica's pipeline
// in micro-batches (training/pipeline/pipeline.h), then the replicas' gradients are averaged.
//
//   Pipeline pipeline(mesh.group("pp"), division.schedule(), stages);
//   TiedWeights tied(*mesh.group("pp"), tied_weights);
//   auto gradients = std::make_shared<train::PipelineGradients>(
//       pipeline, loss, optimizer,
//       train::PipelineGradientsOptions{.replicas = mesh.group("dp"), .tied = &tied});
//   train::TrainingRun run(world,
//       {..., .gradients = gradients, .replicas = mesh.group("dp")}, options);
//
// All ranks of a pipeline get the same batches. A batch is cut along dim 0 into the schedule's
// number of micro-batches, as evenly as possible. A loss is a mean over samples or, with `count`, a
// sum over elements that count (step_gradients.h); in both cases the gradients are those of the
// step's mean loss. If there are fewer samples than micro-batches, a micro-batch without samples
// gets one sample with the weight 0.
//
// The replicas average gradients after the last micro-batch, so this communication does not overlap
// with the backward pass. If the optimizer shards gradients (ZeRO stages 2 and 3, fully_shard.h),
// each rank keeps only its shard after the step's last batch; until then it holds the whole
// gradients of its pipeline stages.
//
// A loss that is not finite is reported with its replica and its micro-batch.
//
// Ownership: this object refers to the pipeline, the optimizer and the tied weights, which must
// outlive it. Thread safety: none.

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "paceline/training/optim/optimizer.h"
#include "paceline/training/parallel/fully_shard.h"
#include "paceline/training/pipeline/pipeline.h"
#include "paceline/training/pipeline/stage_weights.h"
#include "paceline/training/train/step_gradients.h"

namespace paceline::train {

struct PipelineGradientsOptions {
  // This rank and those with the same stages in other replicas; null: there is only one replica.
  std::shared_ptr<ProcessGroup> replicas;
  TiedWeights* tied = nullptr;  // null: the pipeline has no tied weights
  // Shards the optimizer across the replicas as fully_shard() does, after the first replica's
  // parameters have been sent to all of them. With `.stage = 0` nothing is sharded: every rank
  // updates all parameters of its pipeline stages. The member `data_parallel` has no effect.
  FullyShardOptions shard = {.stage = 0};
  // Returns the count of a batch, if the loss is a sum over elements that count; null: the loss is
  // a mean over samples.
  CountFunction count = nullptr;
  // kReport logs a loss that is not finite; kError makes it an Error(kInvalid) on every rank.
  NonFinite non_finite = NonFinite::kReport;
};

class PipelineGradients : public StepGradients {
 public:
  // Returns the loss of a micro-batch, a mean or a sum, from the last stage's outputs; called on
  // the rank of that stage.
  using Loss =
      std::function<at::Tensor(const Pipeline::Tensors& outputs, const data::Batch& micro_batch)>;

  // Collective over the pipeline's ranks and the replicas; all replicas get the first replica's
  // parameters. Requires: the optimizer has the parameters of this rank's stages. Errors of
  // fully_shard().
  PipelineGradients(Pipeline& pipeline, Loss loss, optim::Optimizer& optimizer,
                    const PipelineGradientsOptions& options);

  bool weighs_steps() const override { return options_.count != nullptr; }
  void weigh(std::span<data::Batch> step) override;
  // Collective over all ranks of all replicas. Errors of Pipeline::step().
  void add(const data::Batch& batch, const ScaleLoss& scale, PhaseTimes& times) override;
  double step_loss() const override { return step_loss_; }
  void begin_at(std::int64_t step) override { num_steps_ = step; }

  // Collective over the pipeline's ranks: returns the loss of a batch, a mean or a sum, on every
  // rank, without gradients. The caller must set the stages to eval().
  at::Tensor evaluate(const data::Batch& batch);

  // The times of the last step, for PipelineDivision::picture().
  const PipelineStep& last_step() const { return last_step_; }

 private:
  struct MicroBatches;
  // The losses of a replica's batches in a step, in the form in which ranks exchange them.
  struct ReplicaLoss {
    double weighted = 0;
    double not_finite = -1;  // the first micro-batch whose loss is not finite; -1: all are finite
  };
  static_assert(sizeof(ReplicaLoss) == 2 * sizeof(double));

  std::vector<Pipeline::Tensors> inputs_of(const MicroBatches& all) const;
  double weight_of_part(double share) const;
  bool has_losses() const { return pipeline_.group()->rank() == pipeline_.last_stage_rank(); }
  void note_losses(const MicroBatches& all, const std::vector<at::Tensor>& losses, double weight);
  std::vector<ReplicaLoss> share_losses();
  void report_non_finite(const std::vector<ReplicaLoss>& found);
  void average();
  std::vector<bool> used_parameters();
  void average_whole(const std::vector<at::Tensor>& gradients);
  void average_parts(const std::vector<bool>& used);

  Pipeline& pipeline_;
  const Loss loss_;
  optim::Optimizer& optimizer_;
  const PipelineGradientsOptions options_;
  PipelineStep last_step_;
  ReplicaLoss own_loss_;  // of the current step; set on the last stage's rank
  double step_loss_ = 0;
  std::int64_t num_steps_ = 0;
  std::uint64_t num_non_finite_ = 0;  // the number of steps with a loss that is not finite
};

}  // namespace paceline::train
