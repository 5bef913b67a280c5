#pragma once

// A whole training run, from its first step or from a checkpoint to its closing table: everything
// in a training program except its data, its model and its loss.
//
//   train::TrainingProcess process({.threads = 1});
//   DistributedDataParallel model(std::make_shared<Net>(), process.group());
//   optim::Adam optimizer(model->parameters());
//   train::TrainingRun run(process.group(),
//       {.module = model.module(), .optimizer = optimizer,
//        .gradients = train::backward_passes(loss, model),
//        .make_loader = ..., .test = ...},
//       {.epochs = 90, .checkpoints = {.folder = "run"}, .metrics = "metrics.jsonl"});
//   return run.train();
//
// With PACELINE_PROFILE=FILE in the environment, the run only measures a few steps and writes their
// profile to FILE.
//
// Rank 0 prints progress, one line per epoch and the table, and writes metrics and weights. After
// the first step the run plans its memory; the table shows this plan and the measured peak side by
// side. After each epoch all ranks evaluate and, if due, save. A signal or a file
// stops all ranks after the same step, with a checkpoint. Messages suggest the usual flags:
// --resume, --epochs, --max-steps, --seed, --lr-schedule-steps (examples/recipes/training_run.cpp).
//
// Ownership: this object refers to the parts of `Training`, which must outlive it. Thread safety:
// none.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/data/data_loader.h"
#include "paceline/training/models/layers.h"
#include "paceline/training/optim/optimizer.h"
#include "paceline/training/train/checkpoints/attached_state.h"
#include "paceline/training/train/checkpoints/checkpointer.h"
#include "paceline/training/train/epoch_report.h"
#include "paceline/training/train/evaluate.h"
#include "paceline/training/train/step_gradients.h"
#include "paceline/training/train/training_state.h"

namespace paceline::planning {
struct JobProfile;
}

namespace torch::optim {
class Optimizer;
}

namespace paceline::optim {
class LibTorchOptimizer;
}

namespace paceline::train {

// The settings of a run's step besides those of the optimizer. A plain value.
struct StepOptions {
  std::string schedule = "constant";  // or step, cosine, one-cycle, plateau
  std::int64_t warmup_steps = 0;      // for cosine (0: none) and one-cycle (0: 30%)
  std::int64_t schedule_steps = 0;    // steps of the whole schedule; 0: those of the run
  // For step: the number of steps after which the rate becomes a tenth; 0: a third of the
  // schedule's steps.
  std::int64_t rate_every = 0;
  double clip_norm = 0;  // 0: gradients are not clipped by norm
  double clip_value = 0;
  bool scales_loss = false;  // for float16 gradients (GradScaler)
  double ema = 0;            // decay of the average of the weights; 0: no average
};

// The unit in which a run reports its throughput: samples, or the elements of a sample. A plain
// value.
struct SampleUnit {
  std::string name = "samples";  // or "tokens"
  std::int64_t per_sample = 1;   // the number of units in a sample
  // Floating-point operations of the forward and backward pass of one sample; 0: unknown. If they
  // are known, the report compares the run with the speed of matrix products
  // (measure_matrix_speed()).
  double operations_per_sample = 0;
};

// The model to train, and the data for it.
struct Training {
  // An optimizer of paceline::optim or torch::optim. With one of torch::optim, rank 0 saves the
  // state, the parameters must still be ones that paceline::optim accepts (optimizer.h), and steps
  // are not checked for damaged memory.
  class AnyOptimizer {
   public:
    AnyOptimizer(optim::Optimizer& optimizer);  // NOLINT: the conversion is the point
    // Error(kUnsupported) for LBFGS, whose step needs a closure; Error(kInvalid) for options
    // without get_lr().
    AnyOptimizer(torch::optim::Optimizer& optimizer);  // NOLINT: the conversion is the point

   public:  // internal
    optim::Optimizer& get() const { return *optimizer_; }
    // Null for an optimizer of paceline::optim.
    optim::LibTorchOptimizer* libtorch() const { return libtorch_; }

   private:
    std::shared_ptr<optim::Optimizer> optimizer_;  // shared with the copies
    optim::LibTorchOptimizer* libtorch_ = nullptr;
  };

  torch::nn::Module& module;  // the module that checkpoints save
  AnyOptimizer optimizer;
  std::shared_ptr<StepGradients> gradients;  // shared with the user
  std::string data = {};  // describes the data set; a run continues only with the same text
  // Makes a loader of this rank's batches. Called again when a run with another seed is continued.
  std::function<std::unique_ptr<data::DataLoader>(std::uint64_t seed)> make_loader;
  // Collective: evaluates, and returns the same result on every rank. The module is in eval() mode
  // during the call, with averaged weights if there are any. For a classifier:
  //   return train::evaluate(group, *test_loader, forward).test_result();
  std::function<TestResult()> test;
  // Called after each step of the optimizer, on every rank; for LowCommunication::step(). Null:
  // nothing is called.
  std::function<void()> after_step = nullptr;
  // Collective: called after each epoch, once it has been evaluated and before its checkpoint;
  // EpochReport::stop() ends the run. A run that was begun with this function can only continue
  // with it, and a run that was begun without it only without it.
  std::function<void(const EpochReport& report)> after_epoch = nullptr;
  // Values of the program's own that checkpoints keep, made by state_of().
  std::vector<AttachedState> states = {};
  // Collective: returns the tensors for the weights file, on rank 0; null: weights_of(module).
  std::function<StateDict()> weights = nullptr;
  // If ranks divide the model: the ranks that hold the same parts as this one and have other
  // batches (DeviceMesh::group("dp")); null: all ranks.
  std::shared_ptr<ProcessGroup> replicas = nullptr;
  SampleUnit unit = {};  // for the throughput
  // The number of this rank's samples that were replaced by others because their files could not be
  // used (ImageFolder::num_skipped()). The closing table and the metrics show the sum over all
  // ranks. Null: unknown.
  std::function<std::int64_t()> num_skipped = nullptr;
  // For the planner: see DryRunParts::describe.
  std::function<void(planning::JobProfile& profile, std::int64_t samples)> describe = nullptr;
};

struct TrainingRunOptions {
  std::int64_t epochs = 1;
  std::int64_t max_steps = 0;  // steps of the whole run; 0: no limit
  // Nullopt: 0, or the seed of the run that is continued.
  std::optional<std::uint64_t> seed = {};
  // The learning rate of a continued run without a schedule; nullopt: the saved rate.
  std::optional<double> learning_rate = {};
  StepOptions step = {};
  CheckpointOptions checkpoints = {};
  std::string metrics = {};      // JSON lines are appended to this file
  std::string tensorboard = {};  // folder for TensorBoard
  std::string weights = {};      // file for the final weights, as safetensors
  std::string command = {};      // the program's quoted command line, for a hint to use more ranks
};

class TrainingRunCore;

class TrainingRun {
 public:
  // Collective. Opens the files, and restores a run if there is one to continue. Errors: those of
  // Checkpointer::begin(); kInvalid on every rank when a continued run has another seed or data set
  // and for a stream without max_steps; kSystem for a file that cannot be written; kUnsupported for
  // clipping by norm or loss scaling if ranks divide the model without set_model_parts(), and for
  // averaged weights if the ranks share or divide the weights (stage 3 of fully_shard()).
  TrainingRun(std::shared_ptr<ProcessGroup> group, const Training& training,
              const TrainingRunOptions& options);
  ~TrainingRun();
  TrainingRun(const TrainingRun&) = delete;
  TrainingRun& operator=(const TrainingRun&) = delete;

  // Collective. If the environment asks for a profile, writes it and returns 0; Error(kInvalid) if
  // the model or the optimizer is divided among ranks. Otherwise trains to the end, evaluates and
  // prints the closing table, or stops earlier when a stop is requested. Returns the program's exit
  // code: 0, kStoppedAsAgreed, or 1 when the newest state could not be written.
  int train();

  const TrainingState& state() const;
  // The result of the last evaluation.
  const TestResult& result() const;

 private:
  const std::unique_ptr<TrainingRunCore> core_;
};

}  // namespace paceline::train
