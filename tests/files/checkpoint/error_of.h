#pragma once

// The Error that a call throws, to look at.

#include <gtest/gtest.h>

#include "paceline/engine/core/error.h"

namespace paceline::testing {

// A call that throws none is a failure of the test.
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
