#pragma once

// What ranks that do not call forward() and backward() alike are told beside the collectives that
// do not match, and beside a rank that has left: neither call looks like a collective.

#include "paceline/engine/core/error.h"

namespace paceline {

// `error` with that advice, when it is about calls that do not match or a rank that has left.
Error with_advice(const Error& error);

// Runs `body`, which communicates for a forward or backward pass.
template <class Body>
void in_lockstep(Body body) {
  try {
    body();
  } catch (const Error& error) {
    throw with_advice(error);
  }
}

}  // namespace paceline
