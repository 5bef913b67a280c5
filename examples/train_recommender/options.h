#pragma once

// The flags of train_recommender.

#include <cstdint>
#include <string>

#include "paceline/engine/tables/row_options.h"
#include "paceline/training/train/training_process.h"

#include "examples/train_recommender/clicks.h"
#include "examples/train_recommender/dlrm.h"

namespace train_recommender {

struct Options {
  std::string movielens;  // folder; empty: synthetic clicks
  SyntheticOptions synthetic;
  DlrmOptions model;
  paceline::tables::Consistency consistency = paceline::tables::Consistency::asynchronous();
  bool prefetch = true;
  double row_lr = 0.05, lr = 2e-3;
  std::int64_t batch_size = 256;  // samples of each trainer in a step
  std::int64_t epochs = 1;
  std::uint64_t seed = 0;
  std::string metrics;  // file
  paceline::train::ProcessOptions process;
};

// Ends the program with exit code 2 if a flag is wrong, and with 0 after --help.
Options parse_options(int argc, char** argv);

}  // namespace train_recommender
