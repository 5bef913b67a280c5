#pragma once

// Trains a model that is cut into stages: carries out a schedule
// (planning/schedules/pipeline_schedule.h) on the ranks of a group.
//
//   Pipeline pipeline(group, pipeline_schedule("1f1b", group->world_size(), 8),
//                     {make_stage(group->rank(), part_of_the_model)});
//   auto result = pipeline.step(rank == 0 ? micro_batches : none, [&](const auto& outputs, int i) {
//     return torch::mse_loss(outputs[0], targets[i]);
//   });
//   optimizer.step();
//
// Every micro-batch's loss is divided by the number of micro-batches; gradients are added to .grad
// in the order of micro-batches. So for every schedule the gradients are, bit for bit, those of a
// single process that takes the micro-batches one after another through all stages. Autograd's
// hooks on parameters are not called.
//
// Tensors between stages may differ in shape from one micro-batch to the next, but not in number.
// Floating-point and complex tensors carry gradients. A parameter belongs to one stage. The stages
// of a rank are on one device, as are the inputs of the first stage and the targets of the last
// stage. The group's CUDA backend sends tensors on a CUDA device, and then neither sender nor
// receiver waits for its device; without such a backend these tensors travel through host memory.
//
// While a SymmetricTensors exists, ranks on the same host read each other's large tensors in place;
// ranks that are threads of one process read all tensors in place. After step() or evaluate() has
// returned, no rank reads another rank's tensors.
//
// While a step runs, only the pipeline may use the group; it uses the group's messages and all
// tags. After an error the group can no longer be used; every rank's error reports which rank
// failed first, and in which action.
//
// Thread safety: one thread at a time.

#include <concepts>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/planning/schedules/pipeline_schedule.h"

namespace paceline {

// A stage: any function from tensors to tensors. It must not change its inputs in place; in every
// stage but the first, doing so is Error(kInvalid) on the stage's rank.
struct PipelineStage {
  using Tensors = std::vector<at::Tensor>;
  int index = 0;
  std::function<Tensors(const Tensors& inputs)> forward;
  // All tensors that the stage trains; for the last stage also the tensors that the loss trains. If
  // the stage uses another tensor that requires a gradient, the first step throws Error(kInvalid).
  // Parameters that require no gradient are ignored.
  std::vector<at::Tensor> parameters;
};

// Makes a stage of a module holder whose forward() takes and returns one tensor, or a vector of
// tensors (models::BertStage).
template <class Module>
PipelineStage make_stage(int index, Module module) {
  auto parameters = module->parameters();
  return {
      .index = index,
      .forward = [module](const PipelineStage::Tensors& inputs) mutable -> PipelineStage::Tensors {
        if constexpr (requires {
                        { module->forward(inputs) } -> std::same_as<PipelineStage::Tensors>;
                      }) {
          return module->forward(inputs);
        } else {
          return {module->forward(inputs.at(0))};
        }
      },
      .parameters = std::move(parameters)};
}

// Cuts `batch` along dim 0 into equal parts. Error(kInvalid) if the number of micro-batches does
// not divide the batch.
std::vector<PipelineStage::Tensors> split_micro_batches(const at::Tensor& batch,
                                                        int num_micro_batches);

struct PipelineStep {
  // The loss of each micro-batch, before the division by the number of micro-batches; empty on
  // ranks without the last stage.
  std::vector<at::Tensor> losses;
  // When this rank's actions began and ended, in seconds from the beginning of its step.
  std::vector<pipeline::TimedAction> actions;
};

class Pipeline {
 public:
  using Tensors = PipelineStage::Tensors;
  // Returns a scalar; called on the rank that has the last stage.
  using Loss = std::function<at::Tensor(const Tensors& outputs, int micro_batch)>;

  // Collective. Error(kInvalid) for a schedule that validate() rejects, that differs between ranks
  // or that is for another number of ranks, and if `stages` are not the schedule's stages of this
  // rank.
  Pipeline(std::shared_ptr<ProcessGroup> group, PipelineSchedule schedule,
           std::vector<PipelineStage> stages);
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // Collective: runs a step of the schedule. `inputs`: for each micro-batch the inputs of the first
  // stage; empty on ranks without that stage. Error(kInvalid) if the number of micro-batches is not
  // the schedule's. If a stage throws, its rank throws an Error with the exception's text, the
  // action and the shapes of the stage's inputs, and the other ranks throw Error(kAborted).
  PipelineStep step(const std::vector<Tensors>& inputs, const Loss& loss);

  // Collective. Runs the schedule's forward passes without gradients. Returns each micro-batch's
  // loss; empty on ranks without the last stage. Errors: those of step(). The caller must set
  // modules to eval().
  std::vector<at::Tensor> evaluate(const std::vector<Tensors>& inputs, const Loss& loss);

  const PipelineSchedule& schedule() const { return schedule_; }
  const std::shared_ptr<ProcessGroup>& group() const { return group_; }
  bool has_first_stage() const { return schedule_.rank_of_stage.front() == group_->rank(); }
  // The rank that gets the losses.
  int last_stage_rank() const { return schedule_.rank_of_stage.back(); }

 private:
  struct Run;

  void require_own_stages() const;
  void require_same_schedule() const;
  void guarded(std::string_view function, const std::function<void()>& body);
  const std::vector<pipeline::Action>& own_actions() const;

  const std::shared_ptr<ProcessGroup> group_;
  const PipelineSchedule schedule_;
  const std::vector<PipelineStage> stages_;
  const std::unique_ptr<Run> run_;
};

}  // namespace paceline
