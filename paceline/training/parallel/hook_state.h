#pragma once

// The state of a communication hook, for checkpoints.
//
// Thread safety: a value.

#include "paceline/training/optim/metadata.h"
#include "paceline/training/optim/optimizer.h"

namespace paceline {

// The tensors that a communication hook keeps between passes, by parameter, so that they outlive
// the buckets: checkpoints save them, and when buckets are planned again after parameters were
// frozen or unfrozen, the tensors are copied into the new plan.
//
// `owed` has the gradients that a rank's hook has not sent yet, so it differs between ranks. When a
// run resumes with another number of ranks, each rank begins with the mean of all `owed`, so that
// the amount that is still missing in the average of the gradients stays the same. A job of one
// rank sends nothing and keeps `owed` for later runs with more ranks.
struct HookState {
  // The hook's name and progress, and the order of the gradients in buckets, so that a resumed run
  // plans the same buckets. The same on every rank; empty without a hook.
  optim::Metadata words;
  optim::NamedTensors shared;  // "factor.PARAMETER": the same on every rank
  optim::NamedTensors owed;    // "error.PARAMETER": this rank's residuals
};

}  // namespace paceline
