#pragma once

// A few steps that are only measured. They produce the profile of a training run, which `paceline
// advise` uses for its plans (planning/forecast/job_profile.h). If the environment contains
// PACELINE_PROFILE=FILE, TrainingRun runs these steps instead of training. A program whose model is
// a chain of layers adds the costs of its layers with profile_layers().
//
// All ranks compute at the same time and do not communicate while they are timed, so the times are
// those of a rank's passes on a machine that is as busy as in the real job.
//
// Thread safety: same as measure_layers() (training/pipeline/measure_layers.h).

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
#include "paceline/training/train/run_report.h"
#include "paceline/training/train/step_gradients.h"

namespace paceline::train {

struct LayerChain {
  std::vector<PipelineStage> layers;  // each layer takes the output of the previous one
  // Makes the first layer's input for a given number of samples.
  std::function<at::Tensor(std::int64_t samples)> make_input;
  Pipeline::Loss loss;  // takes the last layer's output
};

// Collective. Times each layer with `samples` samples and with a quarter of them, and measures its
// parameters, activations and output. Error(kInvalid) for fewer than one sample; errors of
// measure_layers().
std::vector<planning::LayerProfile> profile_layers(ProcessGroup& group, const LayerChain& chain,
                                                   std::int64_t samples);

// Returns `whole` minus the costs of `part`, for layers that cannot run alone. No number becomes
// negative.
planning::LayerProfile subtract(planning::LayerProfile whole, const planning::LayerProfile& part);

// Returns the shortest time, in seconds, of several calls of `body`, after one call to warm up.
double least_seconds(const std::function<void()>& body);

// Returns the path in PACELINE_PROFILE; nullopt if the variable is not set, so the program trains.
std::optional<std::filesystem::path> wanted_profile();

struct DryRunParts {
  torch::nn::Module& module;
  optim::Optimizer& optimizer;
  StepGradients& gradients;
  data::DataLoader& loader;
  SampleUnit unit;
  // Adds facts that only the program knows: its layers (profile_layers()), and which parts of them
  // can be divided. Called on every rank; empty: the whole model is one layer, which can only be
  // replicated.
  std::function<void(planning::JobProfile& profile, std::int64_t samples)> describe;
};

// Collective; changes the parameters. Returns the profile on every rank, with times averaged over
// all ranks. Error(kInvalid) for an epoch without batches, and if own_memory() returns nullopt.
planning::JobProfile dry_run(ProcessGroup& group, const DryRunParts& parts);

}  // namespace paceline::train
