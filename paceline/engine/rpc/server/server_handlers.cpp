// How a request is dispatched to a handler, and the built-in methods for references.

#include "paceline/engine/core/error_text.h"
#include "paceline/engine/rpc/calls.h"
#include "paceline/engine/rpc/server/server.h"

namespace paceline::rpc {

namespace {

thread_local const Server* server_of_this_thread =
    nullptr;  // the server whose handler this thread runs

}  // namespace

void Server::dispatch(const std::shared_ptr<Incoming>& call) {
  const Method& method = *call->method_;
  const auto refuse = [&](ReplyStatus status, std::string_view why) {
    ended_one();
    call->answer(status, std::make_shared<OutgoingBytes>(why));
  };
  ++num_under_way_;
  switch (method.kind) {
    case Method::Kind::kAtOnce:
      run_handler(call);
      ended_one();
      return;
    case Method::Kind::kCreate:
    case Method::Kind::kObject: {
      using Admission = Objects::Admission;
      switch (
          objects_.admit(call->frame_.object, method.class_number, call, method.options.queue)) {
        case Admission::kRun:
          return pool_->run(call);
        case Admission::kWaits:
          return;
        case Admission::kNoObject:
          return refuse(ReplyStatus::kNoObject, "the object does not exist (any more)");
        case Admission::kOtherClass:
          return refuse(ReplyStatus::kNoMethod, "the object belongs to another class");
        case Admission::kTooMany:
          return refuse(ReplyStatus::kBusy, "too many calls wait for the object");
      }
      return;
    }
    case Method::Kind::kPlain:
      break;
  }
  if (method.options.threads > 0) {
    const std::lock_guard lock(mutex_);
    CallQueue& queue = queues_[&method];
    if (queue.num_running == method.options.threads) {
      if (!queue.waiting) queue.waiting = std::make_unique<std::deque<std::shared_ptr<Incoming>>>();
      if (queue.waiting->size() < method.options.queue) return queue.waiting->push_back(call);
    } else {
      ++queue.num_running;
      return pool_->run(call);
    }
  } else {
    return pool_->run(call);
  }
  refuse(ReplyStatus::kBusy, "too many calls wait for its handlers (ServeOptions::queue)");
}

void Server::execute(const std::shared_ptr<Incoming>& call) {
  const Server* const outer = std::exchange(server_of_this_thread, this);
  run_handler(call);
  server_of_this_thread = outer;
  after(call);
  ended_one();
}

void Server::ended_one() {
  --num_under_way_;
  if (is_leaving_) futex_wake_all(num_under_way_);
}

bool Server::wait_for_handlers(Deadline deadline) {
  const std::uint32_t own = server_of_this_thread == this ? 1 : 0;
  for (std::uint32_t there = num_under_way_; there > own; there = num_under_way_) {
    if (deadline.expired()) return false;
    futex_wait(num_under_way_, there, std::min<std::chrono::nanoseconds>(deadline.remaining(), 1s));
  }
  return true;
}

void Server::run_handler(const std::shared_ptr<Incoming>& call) {
  const Method& method = *call->method_;
  const bool creates = method.kind == Method::Kind::kCreate;
  const auto refuse = [&](ReplyStatus status, const std::string& why) {
    if (creates) objects_.failed(call->frame_.object, "its constructor failed: " + why);
    call->answer(status, std::make_shared<OutgoingBytes>(why));
  };
  if (is_leaving_) return refuse(ReplyStatus::kLeaving, "the worker is leaving");
  if (call->is_cancelled()) {
    return refuse(ReplyStatus::kTooLate, "its deadline passed before a handler was free");
  }
  if (method.kind == Method::Kind::kObject) {
    std::string why_not;
    call->object = objects_.find(call->frame_.object, why_not);
    if (!call->object) return refuse(ReplyStatus::kNoObject, why_not);
  }
  CallStats::start(call->mark_);
  try {
    method.handler(*call);
    if (creates) objects_.constructed(call->frame_.object, std::move(call->object));
  } catch (const UnreadableRequest& error) {
    refuse(ReplyStatus::kUnreadable, error.what());
  } catch (...) {
    refuse(ReplyStatus::kHandlerFailed, describe_current_exception());
  }
  call->object.reset();
}

// Lets the next call of the same object or method run.
void Server::after(const std::shared_ptr<Incoming>& call) {
  const Method& method = *call->method_;
  std::shared_ptr<Incoming> next;
  if (method.kind != Method::Kind::kPlain) {
    Objects::Dead dead;
    next = objects_.finished(call->frame_.object, dead);
    bury(std::move(dead));
  } else if (method.options.threads > 0) {
    const std::lock_guard lock(mutex_);
    CallQueue& queue = queues_[&method];
    if (queue.waiting && !queue.waiting->empty()) {
      next = std::move(queue.waiting->front());
      queue.waiting->pop_front();
    } else {
      --queue.num_running;
    }
  }
  if (next) pool_->run_next(std::move(next));
}

// Destroys objects on a thread of the pool, because their destructors may take long.
void Server::bury(Objects::Dead dead) {
  if (dead.empty()) return;
  pool_->run([dead = std::make_shared<Objects::Dead>(std::move(dead))] {});
}

void Server::reply(Incoming& call, ReplyStatus status, OutgoingPointer message) {
  const Frame& frame = call.frame_;
  setup_->stats.end(CallSide::kCallee, call.mark_,
                    {.method = call.method_ ? std::string_view(call.method_->name) : "",
                     .other = call.session_->caller.name,
                     .caller = call.session_->caller.incarnation,
                     .callee = setup_->self.name,
                     .number = frame.number},
                    status != ReplyStatus::kOk);
  if (frame.kind == FrameKind::kTell) return told(call, status, message);
  CalleeRecord& session = *call.session_;
  const std::size_t size = message->writer().size();
  if (size > session.caller.max_message) {
    status = ReplyStatus::kHandlerFailed;
    message = std::make_shared<OutgoingBytes>(
        fmt::format("the reply of {} bytes is above the limit of {} bytes (JoinOptions::"
                    "max_message of the caller)",
                    size, session.caller.max_message));
  }
  // The holds of the references in the reply are kept for one lease, in which the caller asks for
  // holds of its own.
  if (!message->writer().references().empty()) {
    try {
      if (const auto table = call.references()) {
        table->await_creation(message->writer().references(), call.deadline());
        table->pass_on(message->writer().references());
      }
    } catch (const Error& error) {  // for example, another worker's table holds the reference
      status = ReplyStatus::kHandlerFailed;
      message = std::make_shared<OutgoingBytes>(error.what());
    }
  }
  std::shared_ptr<Incoming> ended;  // destroyed after the lock is released
  GuestPointer guest;
  {
    const std::lock_guard lock(session.mutex);
    const auto running = session.running.find(frame.number);
    if (running != session.running.end() && running->second.get() == &call) {
      ended = std::move(running->second);
      session.running.erase(running);
    }
    std::shared_ptr<StoredReply> stored;
    if (frame.effect == Effect::kOnce) {
      stored = std::make_shared<StoredReply>(StoredReply{status, message});
    }
    if (session.has_ended || !session.calls.finish(frame.number, stored)) return;
    guest = session.guest;
    if (!guest) return;
    guest->connection().queue({.kind = FrameKind::kReply, .status = status, .number = frame.number},
                              message);
  }
  // A kAtOnce handler runs on the receiving thread, which later sends all queued replies together.
  if (call.method_ && call.method_->kind != Method::Kind::kAtOnce &&
      !pool_->send_with_others(guest)) {
    guest->send();
  }
}

void Server::told(Incoming& call, ReplyStatus status, const OutgoingPointer& message) {
  if (status != ReplyStatus::kOk) {
    const auto text = message->writer().copy();
    log::warning(
        fmt::format("{}: a one-way message of worker {} to {} failed: {}", setup_->self.name,
                    call.caller(), call.method_ ? call.method_->name : "a method",
                    std::string_view(reinterpret_cast<const char*>(text.data()), text.size())));
  }
  // Credit is counted per connection, so it goes to the connection that carried the message, even
  // if that connection carries another session by now or is lost.
  const GuestPointer guest = std::move(call.teller_);
  {
    const std::lock_guard lock(call.session_->mutex);
    const std::uint64_t num = ++guest->num_handled;
    const std::uint64_t bytes = guest->bytes_handled += call.payload_.bytes().size();
    if (num - guest->num_reported < setup_->max_calls / 4 &&
        bytes - guest->bytes_reported < setup_->max_bytes / 4) {
      return;
    }
    guest->num_reported = num;
    guest->bytes_reported = bytes;
    guest->connection().queue({.kind = FrameKind::kCredit, .number = num, .method = bytes});
  }
  guest->send();
}

// ---- built-in methods ----

// Holders of references call these methods to hold and release objects. The calls run in the order
// in which they arrive.
void Server::serve_references() {
  serve({.name = std::string(kHoldMethod),
         .handler =
             [this](detail::ServedCall& call) {
               const detail::RequestOf<ObjectList> request(call);
               ObjectStates states;
               {
                 CalleeRecord& session = *static_cast<Incoming&>(call).session_;
                 const std::lock_guard lock(session.mutex);
                 for (const ObjectNumber number : (*request).numbers) {
                   const bool exists = !session.has_ended && objects_.hold(number, session.number);
                   states.exist.push_back(exists ? 1 : 0);
                 }
               }
               call.answer(make_outgoing(std::move(states), call.is_for_self()));
             },
         .kind = Method::Kind::kAtOnce});
  serve({.name = std::string(kReleaseMethod),
         .handler =
             [this](detail::ServedCall& call) {
               const detail::RequestOf<ObjectList> request(call);
               const CalleeRecord& session = *static_cast<Incoming&>(call).session_;
               Objects::Dead dead;
               for (const ObjectNumber number : (*request).numbers) {
                 objects_.release(number, session.number, dead);
               }
               bury(std::move(dead));
               call.answer(make_outgoing(Nothing{}, call.is_for_self()));
             },
         .kind = Method::Kind::kAtOnce});
}

}  // namespace paceline::rpc
