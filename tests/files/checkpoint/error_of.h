#pragma once

// Returns the Error that a call throws.

#include <gtest/gtest.h>

#include "paceline/engine/core/error.h"

namespace paceline::testing {

// If the call throws none, the test fails.
template <class Call>
Error error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error was thrown";
  return Error(ErrorCode::kInvalid, "");
}

}  // namespace paceline::testing
