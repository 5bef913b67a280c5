#pragma once

// A program's view of a finished epoch of a TrainingRun, and its decision: the result of the
// evaluation, the best value so far, and whether the run continues.
//
//   .after_epoch = [&](const train::EpochReport& epoch) {
//     epoch.save_if_best("best.safetensors", epoch.test.loss);
//     if (epoch.epochs_since_best() >= 5) epoch.stop();
//   }
//
// Thread safety: none.

#include <cstdint>
#include <functional>
#include <string>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/train/evaluate.h"
#include "paceline/training/train/training_state.h"

namespace paceline::train {

class BestValues;

class EpochReport {
 public:
  const TrainingState& state;  // state.epoch is the number of epochs that have ended
  const TestResult& test;      // the result of Training::test for this epoch

  // Collective. If rank 0's `value` is lower than after every earlier epoch of the whole run,
  // including epochs before a resume, writes the weights to `file` in the form of the run's own
  // weights file, and returns true on every rank. For a metric that should be as high as possible,
  // pass its negative. The values are kept by file name, without the folder. Error(kSystem) on
  // every rank when the file cannot be written, kInvalid for two files of one name in different
  // folders.
  bool save_if_best(const std::string& file, double value) const;
  // The number of epochs since save_if_best() last returned true, or since the beginning of the
  // run if it never has; 0 in the epoch in which it did.
  std::int64_t epochs_since_best() const;

  // Ends the run normally after this epoch, once its checkpoint is saved. Only rank 0's call
  // counts, so that all ranks end together. The checkpoint does not record the call: a resumed run
  // trains the next epoch, after which Training::after_epoch decides again.
  void stop() const { stops_ = true; }

 public:  // internal
  EpochReport(ProcessGroup& group, const TrainingState& state, const TestResult& test,
              BestValues& best, std::function<void(const std::string& file)> write_weights);
  bool stops() const { return stops_; }

 private:
  ProcessGroup& group_;
  BestValues& best_;
  const std::function<void(const std::string& file)> write_weights_;
  mutable bool stops_ = false;
};

}  // namespace paceline::train
