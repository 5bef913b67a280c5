#pragma once

// A program's view of an epoch of a TrainingRun that has ended, and its decision: the result of the
// evaluation, the best value so far, and whether the run continues.
//
//   .after_epoch = [&](const train::EpochReport& epoch) {
//     epoch.save_if_best("best.safetensors", epoch.test.loss);
//     return epoch.epochs_since_best() < 5 ? train::Next::kContinue : train::Next::kStop;
//   }
//
// Thread safety: none.

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/optim/metadata.h"
#include "paceline/training/train/evaluate.h"
#include "paceline/training/train/loop.h"

namespace paceline::train {

// The best value of a metric for each file of weights, and the epoch that had it. A checkpoint of
// the run has them too.
class BestValues {
 public:
  // Takes the value if it is lower than every earlier one for the file; NaN never is.
  bool take(const std::string& file, double value, std::int64_t epoch);
  // The last epoch with a new best value for any file; 0: there was none.
  std::int64_t last_epoch() const;

  optim::Metadata state() const;
  // Error(kInvalid) for words that are not from state().
  void set_state(const optim::Metadata& words);

 private:
  struct Best {
    double value = 0;
    std::int64_t epoch = 0;
  };
  std::map<std::string, Best> best_;  // by file
};

class EpochReport {
 public:
  EpochReport(ProcessGroup& group, const TrainingState& state, const TestResult& test,
              BestValues& best, std::function<void(const std::string& file)> write_weights)
      : state(state),
        test(test),
        group_(group),
        best_(best),
        write_weights_(std::move(write_weights)) {}

  const TrainingState& state;  // state.epoch is the number of epochs that have ended
  const TestResult& test;      // the result of Training::test for this epoch

  // Collective. If rank 0's `value` is lower than after every earlier epoch of the whole run, also
  // before it was resumed, writes the weights to `file` as the run's own weights file, and returns
  // true on every rank. For a metric of which more is better, pass its negative. Error(kSystem) on
  // every rank when the file cannot be written.
  bool save_if_best(const std::string& file, double value) const;
  // Epochs since save_if_best() last returned true: 0 just after it has; all epochs if it never
  // has.
  std::int64_t epochs_since_best() const { return state.epoch - best_.last_epoch(); }

 private:
  ProcessGroup& group_;
  BestValues& best_;
  const std::function<void(const std::string& file)> write_weights_;
};

}  // namespace paceline::train
