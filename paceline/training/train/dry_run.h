#pragma once

// A few steps that only measure. They give the profile of a training from which `paceline advise`
// plans (planning/forecast/job_profile.h). TrainingRun runs them instead of training if the
// environment asks for it, with PACELINE_PROFILE=FILE. A program whose model is a chain of layers
// adds the costs of its layers with profile_layers().
//
// All ranks compute at the same time and do not communicate while they are timed, so the times are
// those of a rank's passes on a machine that is as busy as in the real job.
//
// Thread safety: as measure_layers() (training/pipeline/measure_layers.h).

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/planning/forecast/job_profile.h"
#include "paceline/training/data/data_loader.h"
#include "paceline/training/optim/optimizer.h"
#include "paceline/training/pipeline/pipeline.h"
#include "paceline/training/train/loop.h"
#include "paceline/training/train/run_report.h"

namespace paceline::train {

struct LayerChain {
  std::vector<PipelineStage> layers;  // each takes the output of the one before it
  // Makes the first layer's input for a number of samples.
  std::function<at::Tensor(std::int64_t samples)> make_input;
  Pipeline::Loss loss;  // of the last layer's output
};

// Collective. Times each layer with `samples` and with a quarter of them, and measures its
// parameters, activations and output. Error(kInvalid) for fewer than one sample; errors of
// measure_layers().
std::vector<planning::LayerProfile> profile_layers(ProcessGroup& group, const LayerChain& chain,
                                                   std::int64_t samples);

// Returns `whole` without the costs of `part`, for layers that cannot run alone. No number falls
// below 0.
planning::LayerProfile without(planning::LayerProfile whole, const planning::LayerProfile& part);

// The least seconds of several calls of `body`, after one call that does not count.
double least_seconds(const std::function<void()>& body);

// The file that the environment wants the profile in; nothing: the program is to train.
std::optional<std::filesystem::path> wanted_profile();

struct DryRunParts {
  torch::nn::Module& module;
  optim::Optimizer& optimizer;
  StepGradients& gradients;
  data::DataLoader& loader;
  SampleUnit unit;
  // Adds facts that only the program knows: its layers (profile_layers()), and which parts of them
  // can be divided. Called on every rank; empty: the whole model is one layer, which only replicas
  // can divide.
  std::function<void(planning::JobProfile& profile, std::int64_t samples)> describe;
};

// Collective; changes the parameters. Returns the profile on every rank, with times averaged over
// all ranks. Error(kInvalid) for an epoch without batches.
planning::JobProfile dry_run(ProcessGroup& group, const DryRunParts& parts);

}  // namespace paceline::train
