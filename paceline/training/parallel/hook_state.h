#pragma once

// What a communication hook keeps between passes, by parameter, so that it outlives the buckets: a
// checkpoint has it, and so has the next plan of buckets, after parameters were frozen or thawed.
//
// What is owed is different on every rank: gradients that its hook has not sent yet. When a run
// goes on with another number of ranks, each of them begins with the mean of what all ranks owed:
// what the average of the gradients still lacks then stays the same. A rank alone sends nothing and
// keeps it for the next number of ranks.

#include "paceline/training/optim/optimizer.h"
#include "paceline/training/optim/words.h"

namespace paceline {

struct HookState {
  // The hook's name and progress, and the order of the gradients in buckets: a resumed run plans
  // the same buckets. The same on every rank; empty without a hook.
  optim::Words words;
  optim::NamedTensors shared;  // "factor.PARAMETER": the same on every rank
  optim::NamedTensors owed;    // "error.PARAMETER": this rank's
};

}  // namespace paceline
