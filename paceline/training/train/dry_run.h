#pragma once

// A few steps that only measure: the profile of a training from which `paceline advise` plans
// (planning/forecast/job_profile.h). TrainingRun makes one in the place of training when the
// environment asks for it, with PACELINE_PROFILE=FILE.
//
// All ranks compute at once and do not communicate within what is timed, so what is measured is
// what a rank's passes take on a machine that is as busy as with the real job.

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/planning/forecast/job_profile.h"
#include "paceline/training/data/data_loader.h"
#include "paceline/training/optim/optimizer.h"
#include "paceline/training/train/sample_unit.h"
#include "paceline/training/train/step_gradients.h"

namespace paceline::train {

// Where the environment wants the profile; nothing: the program is to train.
std::optional<std::filesystem::path> wanted_profile();

struct DryRunParts {
  torch::nn::Module& module;
  optim::Optimizer& optimizer;
  StepGradients& gradients;
  data::DataLoader& loader;
  SampleUnit unit;
  // Adds what only the program knows: its layers (layer_meter.h), and what of it can be divided.
  // Called on every rank; empty: the whole model is one layer, which only replicas can divide.
  std::function<void(planning::JobProfile& profile, std::int64_t samples)> describe;
};

// Collective. The parameters are changed. The profile, on every rank: times are the mean of all
// ranks. Error(kInvalid) for an epoch without batches.
planning::JobProfile dry_run(ProcessGroup& group, const DryRunParts& parts);

}  // namespace paceline::train
