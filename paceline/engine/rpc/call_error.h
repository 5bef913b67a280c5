#pragma once

// How a call failed. Its code() says what the caller can do, as everywhere; executed() tells
// whether the handler ran, which decides whether it may be called again; operation() is the
// method's name.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "paceline/engine/core/error.h"

namespace paceline::rpc {

enum class Executed : std::uint8_t {
  kNo,       // it did not run and never will
  kUnknown,  // it may have run, or may still
  kYes,      // it ran and failed: the text is the handler's
};

class CallError : public Error {
 public:
  CallError(ErrorCode code, Executed executed, std::string worker, std::string method,
            const std::string& message, std::optional<std::chrono::milliseconds> deadline = {})
      : Error(code, message, {.operation = std::move(method), .deadline = deadline}),
        executed_(executed),
        worker_(std::move(worker)) {}

  Executed executed() const { return executed_; }
  const std::string& worker() const { return worker_; }  // that was called

 private:
  Executed executed_;
  std::string worker_;
};

// A call over a reference to an object that cannot be used any more. Nothing was executed.
class ReferenceError : public CallError {
 public:
  enum class Reason : std::uint8_t {
    kExpired,    // this worker's lease ran out, or the owner ended the session
    kOwnerLost,  // the owner's process is gone, also if another has its name
    kNoObject,   // its constructor failed, or nobody held it any more
  };
  ReferenceError(Reason reason, std::string worker, std::string method, const std::string& message)
      : CallError(reason == Reason::kNoObject ? ErrorCode::kInvalid : ErrorCode::kPeerLost,
                  Executed::kNo, std::move(worker), std::move(method), message),
        reason_(reason) {}
  Reason reason() const { return reason_; }

 private:
  Reason reason_;
};

}  // namespace paceline::rpc
