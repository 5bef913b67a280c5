#include "paceline/core/error.h"

#include <cerrno>
#include <string>
#include <system_error>

#include <sys/resource.h>

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
  return Error(ErrorCode::kSystem, what + ": " + describe_errno(error_number));
}

std::string describe_errno(int error_number) {
  std::string text = std::generic_category().message(error_number);
  rlimit limit{};
  if (error_number == EMFILE && getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    text += "; raise the limit: ulimit -n, now " + std::to_string(limit.rlim_cur);
  }
  return text;
}

Error said_by(int rank, const std::string& doing, const Error& error) {
  const std::string text = error.what();
  if (text.starts_with("rank ")) return error;
  return Error(error.code(), "rank " + std::to_string(rank) + ": " + doing + ": " + text);
}

}  // namespace paceline
