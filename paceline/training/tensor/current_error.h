#pragma once

// Converts an exception of LibTorch, or of a program's own function, to Paceline's Error.

#include <c10/util/Exception.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"

namespace paceline {

// Returns the exception that is being handled: an Error unchanged (but not as its derived type),
// any other exception as an Error with the code `foreign`, without the backtrace if it is
// LibTorch's. Requires: called in a handler.
inline Error current_error(ErrorCode foreign = ErrorCode::kInvalid) {
  try {
    throw;
  } catch (const Error& error) {
    return error;
  } catch (const c10::Error& error) {
    return Error(foreign, error.what_without_backtrace());
  } catch (...) {
    return Error(foreign, describe_current_exception());
  }
}

}  // namespace paceline
