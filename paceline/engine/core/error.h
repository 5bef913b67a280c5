#pragma once

// The library's exception type. Its code says what the *caller* can do; its message says what
// happened, on which rank, in which operation, and what to do about it. Its context holds the same
// facts for a program that acts on them: docs/diagnosis.md has examples.
//
// Public calls throw Error. Destructors and the library's own threads never let an Error escape: a
// thread stores its error, and the next public call throws it.

#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace paceline {

enum class ErrorCode {
  kInvalid,      // fix the call or the configuration
  kUnsupported,  // choose another backend or type
  kTimeout,      // the time limit passed; the message says which rank or process is late
  kPeerLost,     // a peer died; form a new group
  kAborted,      // another rank failed first; the message gives that rank's error
  kCorrupt,      // data is damaged or malformed; use an older copy
  kSystem,       // the operating system or a library refused; the message says why
};

// "invalid", "timeout", ...: the code as it is printed.
const char* to_string(ErrorCode code);

// The facts of an error, for programs. A field that does not apply is empty.
struct ErrorContext {
  std::string operation = {};  // the call that failed: "all_reduce", "recv", a method of rpc
  std::string group = {};      // the group's name: "world"
  // The ranks that caused the error, by their numbers in the world: ranks that did not arrive, were
  // lost, made a different call, or aborted the group.
  std::vector<int> ranks = {};
  std::optional<std::chrono::milliseconds> deadline = {};  // the timeout that passed
};

// Copies share the context, so copying does not throw. Thread safety: as std::runtime_error.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message, ErrorContext context = {});

  ErrorCode code() const { return code_; }
  std::string operation() const;
  std::string group() const;
  std::vector<int> ranks() const;
  std::optional<std::chrono::milliseconds> deadline() const;

  // Returns a copy of this error with another message.
  Error reworded(const std::string& message) const;
  // Returns a copy of this error in which `context` fills the empty fields.
  Error with(ErrorContext context) const;

 private:
  ErrorCode code_;
  std::shared_ptr<const ErrorContext> context_;  // null: every field is empty
};

// Error(kCorrupt) about the state of this job itself: parameters that should be equal on all ranks
// differ, or an optimizer's state has changed since the optimizer wrote it. No step may be taken
// with this state, and it must not be saved. A program that ends with this error exits with 86.
class DamagedState : public Error {
 public:
  explicit DamagedState(const std::string& message) : Error(ErrorCode::kCorrupt, message) {}
};

// "Stopped as agreed, everything is saved, start me again": the exit code of a rank that ends
// because of AgreedStop. `paceline run` exits with this code when all ranks do; that is not a
// failure.
inline constexpr int kStoppedAsAgreed = 85;

}  // namespace paceline
