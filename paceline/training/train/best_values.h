#pragma once

// The best values of a run's metrics.
//
// Thread safety: none.

#include <cstdint>
#include <map>
#include <string>

#include "paceline/training/optim/metadata.h"

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

}  // namespace paceline::train
