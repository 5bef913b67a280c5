#pragma once

// The one exception of the library. Its code says what the *caller* can do; its message says what
// happened, on which rank, in which operation, and what to do about it.
//
// Public calls throw Error. Threads that the library owns and destructors never let one escape:
// they store it, and the next public call throws it.

#include <stdexcept>
#include <string>

namespace paceline {

enum class ErrorCode {
  kInvalid,      // fix the call or the configuration
  kUnsupported,  // choose another backend or type
  kTimeout,      // a rank did not arrive; the message names it
  kPeerLost,     // a peer died; form a new group
  kAborted,      // another rank failed first; the message carries its cause
  kCorrupt,      // the bytes are not what was written; use an older copy
  kSystem,       // the operating system refused; the message carries errno
};

// "invalid", "timeout", ...: the code as it is printed.
const char* to_string(ErrorCode code);

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message);
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

// Error(kCorrupt) about the state of this job itself: ranks whose parameters should be equal have
// others, or an optimizer's state is not what it wrote. No step may be taken with it, and it must
// not be saved; a program that lets it end itself ends with kStateDamaged (exit_code.h).
class DamagedState : public Error {
 public:
  explicit DamagedState(const std::string& message) : Error(ErrorCode::kCorrupt, message) {}
};

// An Error(kSystem) whose message is `what: describe_errno(error_number)`. Call it before anything
// else can change errno.
Error system_error(const std::string& what);
Error system_error(const std::string& what, int error_number);
// strerror(error_number) and, where this process has too many descriptors, what to do.
std::string describe_errno(int error_number);

// The text of the exception that is being handled, of whatever type: what a program's own function
// throws need not be a std::exception. Requires: in a handler.
std::string describe_current_exception();

// `error` with who says it ("rank 1", rank_name.h) and what it was doing, unless it begins with a
// rank.
Error said_by(const std::string& who, const std::string& doing, const Error& error);

}  // namespace paceline
