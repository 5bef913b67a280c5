#pragma once

// An exception of LibTorch, or of a program's own function, as Paceline's Error.

#include <c10/util/Exception.h>

#include "paceline/engine/core/error.h"

namespace paceline {

// The exception that is being handled: an Error as it is (not its derived type), any other as
// Error(kInvalid), LibTorch's without the backtrace. Requires: in a handler.
inline Error current_error() {
  try {
    throw;
  } catch (const Error& error) {
    return error;
  } catch (const c10::Error& error) {
    return Error(ErrorCode::kInvalid, error.what_without_backtrace());
  } catch (...) {
    return Error(ErrorCode::kInvalid, describe_current_exception());
  }
}

}  // namespace paceline
