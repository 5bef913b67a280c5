#pragma once

// What train_cnn says before and after training.

#include <string>

#include "paceline/collectives/process_group.h"
#include "paceline/data/image_dataset.h"

#include "examples/train_cnn/options.h"

namespace train_cnn {

// How it was launched, ranks x threads, transport, data, LibTorch; warnings that cost speed, with
// their cure.
void print_opening(const Options& options, const paceline::ProcessGroup& group, int threads,
                   const paceline::data::ImageDataset& images);

// What to try after this run.
std::string next_command(const Options& options, const paceline::ProcessGroup& group);

}  // namespace train_cnn
