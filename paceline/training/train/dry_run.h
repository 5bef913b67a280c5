#pragma once

// A few steps that only measure: the profile of a training from which `paceline advise` plans
// (planning/forecast/job_profile.h). TrainingRun makes one in the place of training when the
// environment asks for it, with PACELINE_PROFILE=FILE. A program whose model is a chain of layers
// adds what these cost, by profile_layers().
//
// All ranks compute at once and do not communicate within what is timed, so the times are those of
// a rank's passes on a machine that is as busy as with the real job.
//
// Thread safety: that of measure_layers() (training/pipeline/measure_layers.h).

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
  std::vector<PipelineStage> layers;  // each takes what the one before it returns
  // The first layer's input for so many samples.
  std::function<at::Tensor(std::int64_t samples)> make_input;
  Pipeline::Loss loss;  // of the last layer's output
};

// Collective. Times each layer with `samples` and with a quarter of them, and measures its
// parameters, activations and output. Error(kInvalid) for less than one sample; those of
// measure_layers().
std::vector<planning::LayerProfile> profile_layers(ProcessGroup& group, const LayerChain& chain,
                                                   std::int64_t samples);

// `whole` without the costs of `part`, for layers that cannot run alone. No number falls below 0.
planning::LayerProfile without(planning::LayerProfile whole, const planning::LayerProfile& part);

// Seconds of `body`, the least of some calls after one that does not count.
double least_seconds(const std::function<void()>& body);

// Where the environment wants the profile; nothing: the program is to train.
std::optional<std::filesystem::path> wanted_profile();

struct DryRunParts {
  torch::nn::Module& module;
  optim::Optimizer& optimizer;
  StepGradients& gradients;
  data::DataLoader& loader;
  SampleUnit unit;
  // Adds facts that only the program knows: its layers (profile_layers()), and which parts of them
  // can be divided.
  // Called on every rank; empty: the whole model is one layer, which only replicas can divide.
  std::function<void(planning::JobProfile& profile, std::int64_t samples)> describe;
};

// Collective. The parameters are changed. The profile, on every rank: times are the mean of all
// ranks. Error(kInvalid) for an epoch without batches.
planning::JobProfile dry_run(ProcessGroup& group, const DryRunParts& parts);

}  // namespace paceline::train
