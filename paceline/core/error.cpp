#include "paceline/core/error.h"

#include <cerrno>
#include <system_error>

namespace paceline {

const char* to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalid:
      return "invalid";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kTimeout:
      return "timeout";
    case ErrorCode::kPeerLost:
      return "peer lost";
    case ErrorCode::kAborted:
      return "aborted";
    case ErrorCode::kCorrupt:
      return "corrupt";
    case ErrorCode::kSystem:
      return "system";
  }
  return "unknown";
}

Error::Error(ErrorCode code, const std::string& message)
    : std::runtime_error(message), code_(code) {}

Error system_error(const std::string& what) { return system_error(what, errno); }

Error system_error(const std::string& what, int error_number) {
  return Error(ErrorCode::kSystem, what + ": " + std::generic_category().message(error_number));
}

}  // namespace paceline
