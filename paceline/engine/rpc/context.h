#pragma once

// What a handler may ask about the call that it answers.
//
// Thread safety: all methods.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/rpc/object_id.h"

namespace paceline::rpc {

class Context {
 public:
  Context(std::string caller, Deadline deadline)
      : caller_(std::move(caller)), deadline_(deadline) {}
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // The name of the worker that called.
  const std::string& caller() const { return caller_; }
  // By when the caller wants the reply; never, for what was told.
  Deadline deadline() const { return deadline_; }
  // True once nobody waits for the reply any more: a long handler may stop.
  bool is_cancelled() const {
    return is_cancelled_.load(std::memory_order_relaxed) || deadline_.expired();
  }

  // What find_object() and keep_object() of remote_ref.h do.
  virtual std::shared_ptr<void> find_own(std::uint64_t class_number, ObjectNumber number) const = 0;
  virtual void keep_own(std::uint64_t class_number, ObjectNumber number,
                        std::shared_ptr<void> object) = 0;

 protected:
  ~Context() = default;
  std::atomic<bool> is_cancelled_{false};

 private:
  const std::string caller_;
  const Deadline deadline_;
};

}  // namespace paceline::rpc
