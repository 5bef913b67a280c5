#pragma once

// What train_cnn says before and after training.

#include <string>

#include "paceline/collectives/group/process_group.h"
#include "paceline/data/image_dataset.h"
#include "paceline/train/training_state.h"

#include "examples/train_cnn/options.h"

namespace train_cnn {

// How it was launched, ranks x threads, transport, data, LibTorch; warnings that cost speed, with
// their cure.
void print_opening(const Options& options, const paceline::ProcessGroup& group, int threads,
                   const paceline::data::ImageDataset& images);

// What to try after a run that ended there: a command, or what to put behind this one. Both work as
// they stand.
std::string next_command(const Options& options, const paceline::ProcessGroup& group,
                         const paceline::train::TrainingState& end);

}  // namespace train_cnn
