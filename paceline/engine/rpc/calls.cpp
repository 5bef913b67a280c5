#include "paceline/engine/rpc/calls.h"

#include <functional>
#include <utility>

#include "paceline/engine/rpc/caller.h"
#include "paceline/engine/rpc/references.h"

namespace paceline::rpc {

PendingPointer begin_call(Caller& caller, ReferenceTable& references, const CallTarget& target,
                          detail::RequestMaker request, Deadline deadline) {
  auto outgoing = request(caller.is_self());
  std::function<void(CallEnd)> when_ended;
  if (!outgoing->writer().references().empty()) {
    references.await_creation(outgoing->writer().references(), deadline);
    when_ended = references.pass(outgoing->writer().references());
  }
  try {
    return caller.call(target, std::move(outgoing), deadline, when_ended);
  } catch (...) {
    if (when_ended) when_ended(CallEnd::kNotExecuted);
    throw;
  }
}

void tell_call(Caller& caller, ReferenceTable& references, const CallTarget& target,
               detail::RequestMaker request, Deadline deadline) {
  auto outgoing = request(caller.is_self());
  if (!outgoing->writer().references().empty()) {
    references.await_creation(outgoing->writer().references(), deadline);
    references.pass_on(outgoing->writer().references());
  }
  caller.tell(target, std::move(outgoing));
}

namespace detail {

void confirm_references(const MessageReader& read, const ReceivedMessage& message) {
  message.references->confirm(read.references(), message.deadline);
}

FutureReply::FutureReply(std::shared_ptr<Caller> caller, std::shared_ptr<PendingCall> call,
                         std::shared_ptr<ReferenceTable> references)
    : caller_(std::move(caller)), call_(std::move(call)), references_(std::move(references)) {}

FutureReply& FutureReply::operator=(FutureReply&& other) noexcept {
  abandon();
  caller_ = std::move(other.caller_);
  call_ = std::move(other.call_);
  references_ = std::move(other.references_);
  return *this;
}

FutureReply::~FutureReply() { abandon(); }

void FutureReply::abandon() {
  if (call_ && !call_->done()) caller_->give_up(call_);
}

bool FutureReply::is_ready() const {
  if (!call_->done()) caller_->pump();
  return call_->done();
}

bool FutureReply::wait_for(std::chrono::milliseconds limit) const {
  caller_->wait(call_, Deadline::after(limit));
  return call_->done() || call_->deadline().expired();
}

ReceivedMessage FutureReply::get() const {
  caller_->wait(call_, call_->deadline());
  if (!call_->done()) caller_->give_up(call_);
  caller_->wait(call_, Deadline::never());  // returns soon: given up, or a reply is being delivered
  Payload& reply = call_->reply();
  if (reply.in_memory()) return {.own = &reply.in_memory()};
  return {.bytes = std::as_const(reply).bytes(),
          .references = references_.get(),
          .deadline = call_->deadline()};
}

void FutureReply::refuse(const Error& error) const {
  throw caller_->unreadable_reply(*call_, error.what());
}

}  // namespace detail

}  // namespace paceline::rpc
