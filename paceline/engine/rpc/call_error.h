#pragma once

// The error of a call. code() says what the caller can do, as for every Error. executed() says
// whether the handler ran, which decides whether the call may be repeated. operation() is the name
// of the method.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "paceline/engine/core/error.h"

namespace paceline::rpc {

class CallError : public Error {
 public:
  enum class Executed : std::uint8_t {
    kNo,       // the handler did not run and never will
    kUnknown,  // the handler may have run, or may still run
    kYes,      // the handler ran, but it failed or its reply cannot be used
  };

  CallError(ErrorCode code, Executed executed, std::string worker, std::string method,
            const std::string& message, std::optional<std::chrono::milliseconds> deadline = {})
      : Error(code, message, {.operation = std::move(method), .deadline = deadline}),
        executed_(executed),
        worker_(std::move(worker)) {}

  Executed executed() const { return executed_; }
  const std::string& worker() const { return worker_; }  // the callee

 private:
  Executed executed_;
  std::string worker_;
};

// A call to an object failed: the reference to it can no longer be used. Nothing was executed.
class ReferenceError : public CallError {
 public:
  enum class Reason : std::uint8_t {
    kExpired,    // this worker's lease expired, or the owner ended the session
    kOwnerLost,  // the owner has left or is lost, even if another worker now has its name
    kNoObject,   // the object's constructor failed, or the last reference to it was released
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
