#include "paceline/engine/rpc/server/handlers.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "paceline/engine/core/check.h"
#include "paceline/engine/rpc/server/server.h"

namespace paceline::rpc {

bool Objects::create(ObjectNumber number, std::uint64_t class_number, SessionNumber holder) {
  const std::lock_guard lock(mutex_);
  if (objects_.contains(number) || !holds_.create(number, holder)) return false;
  objects_[number].class_number = class_number;
  return true;
}

bool Objects::keep(ObjectNumber number, std::uint64_t class_number, SessionNumber holder,
                   std::shared_ptr<void>&& object) {
  if (!create(number, class_number, holder)) return false;
  constructed(number, std::move(object));
  return true;
}

Objects::Admission Objects::admit(ObjectNumber number, std::uint64_t class_number,
                                  const std::shared_ptr<Incoming>& call, std::size_t max_waiting) {
  const std::lock_guard lock(mutex_);
  const auto found = objects_.find(number);
  if (found == objects_.end() || found->second.is_released) return Admission::kNoObject;
  Object& object = found->second;
  if (object.class_number != class_number) return Admission::kOtherClass;
  CallQueue& queue = object.queue;
  if (queue.num_running == 0) {
    queue.num_running = 1;
    return Admission::kRun;
  }
  if (!queue.waiting) queue.waiting = std::make_unique<std::deque<std::shared_ptr<Incoming>>>();
  if (queue.waiting->size() >= max_waiting) return Admission::kTooMany;
  queue.waiting->push_back(call);
  return Admission::kWaits;
}

std::shared_ptr<void> Objects::find(ObjectNumber number, std::string& why_not) const {
  const std::lock_guard lock(mutex_);
  const auto found = objects_.find(number);
  if (found == objects_.end()) {
    why_not = "the object no longer exists";
    return {};
  }
  if (found->second.failure) why_not = *found->second.failure;
  return found->second.instance;
}

std::shared_ptr<void> Objects::find_of(std::uint64_t class_number, ObjectNumber number) const {
  const std::lock_guard lock(mutex_);
  const auto found = objects_.find(number);
  if (found == objects_.end() || found->second.class_number != class_number) return {};
  return found->second.instance;
}

void Objects::constructed(ObjectNumber number, std::shared_ptr<void> object) {
  const std::lock_guard lock(mutex_);
  const auto found = objects_.find(number);
  if (found != objects_.end()) found->second.instance = std::move(object);
}

void Objects::failed(ObjectNumber number, const std::string& why) {
  const std::lock_guard lock(mutex_);
  const auto found = objects_.find(number);
  if (found != objects_.end()) found->second.failure = std::make_unique<std::string>(why);
}

std::shared_ptr<Incoming> Objects::finished(ObjectNumber number, Dead& dead) {
  const std::lock_guard lock(mutex_);
  const auto found = objects_.find(number);
  if (found == objects_.end()) return {};
  Object& object = found->second;
  CallQueue& queue = object.queue;
  if (queue.waiting && !queue.waiting->empty()) {
    auto next = std::move(queue.waiting->front());
    queue.waiting->pop_front();
    if (queue.waiting->empty()) queue.waiting.reset();
    return next;
  }
  queue.num_running = 0;
  if (object.is_released) {
    dead.push_back(std::move(object.instance));
    objects_.erase(found);
  }
  return {};
}

bool Objects::hold(ObjectNumber number, SessionNumber holder) {
  const std::lock_guard lock(mutex_);
  return holds_.hold(number, holder);
}

void Objects::bury_locked(const ObjectHolds::Destroyed& numbers, Dead& dead) {
  for (const ObjectNumber number : numbers) {
    const auto found = objects_.find(number);
    if (found == objects_.end()) continue;
    if (found->second.queue.num_running > 0) {
      found->second.is_released = true;
      continue;
    }
    dead.push_back(std::move(found->second.instance));
    objects_.erase(found);
  }
}

void Objects::release(ObjectNumber number, SessionNumber holder, Dead& dead) {
  const std::lock_guard lock(mutex_);
  ObjectHolds::Destroyed destroyed;
  holds_.release(number, holder, destroyed);
  bury_locked(destroyed, dead);
}

void Objects::end_session(SessionNumber holder, Dead& dead) {
  const std::lock_guard lock(mutex_);
  ObjectHolds::Destroyed destroyed;
  holds_.end_session(holder, destroyed);
  bury_locked(destroyed, dead);
}

std::vector<std::shared_ptr<Incoming>> Objects::take_waiting() {
  std::vector<std::shared_ptr<Incoming>> all;
  const std::lock_guard lock(mutex_);
  for (auto& [number, object] : objects_) {
    const auto waiting = std::exchange(object.queue.waiting, nullptr);
    if (waiting) std::move(waiting->begin(), waiting->end(), std::back_inserter(all));
  }
  return all;
}

void Objects::forget_all() {
  std::unordered_map<ObjectNumber, Object> objects;  // destroyed after the lock is released
  const std::lock_guard lock(mutex_);
  objects = std::exchange(objects_, {});
}

std::size_t Objects::num_objects() const {
  const std::lock_guard lock(mutex_);
  return objects_.size();
}

// With these two functions a handler accesses the objects of its own worker: it finds an object, or
// keeps a new one for the caller.

std::shared_ptr<void> Incoming::find_own(std::uint64_t class_number, ObjectNumber number) const {
  return server_->objects_.find_of(class_number, number);
}

void Incoming::keep_own(std::uint64_t class_number, ObjectNumber number,
                        std::shared_ptr<void> kept) {
  // A caller that gave up the call has already released the object, so an object that is added
  // after that would stay until the session ends.
  bool is_wanted = false, is_new = false;
  {
    const std::lock_guard lock(session_->mutex);
    is_wanted = !session_->has_ended && !is_cancelled();
    is_new = is_wanted &&
             server_->objects_.keep(number, class_number, session_->number, std::move(kept));
  }
  if (!is_wanted) {
    throw Error(ErrorCode::kAborted, "the caller no longer waits for the object");
  }
  check(is_new, "another object already has the number {}", number);
}

// ---- a request ----

Incoming::Incoming(std::shared_ptr<Server> server, std::shared_ptr<CalleeRecord> session,
                   std::string caller, const Frame& frame, Payload payload, Deadline deadline)
    : ServedCall(std::move(caller), deadline),
      server_(std::move(server)),
      session_(std::move(session)),
      frame_(frame),
      payload_(std::move(payload)) {}

Incoming::~Incoming() = default;

void Incoming::run() { server_->execute(std::static_pointer_cast<Incoming>(shared_from_this())); }

detail::ReceivedMessage Incoming::request() {
  if (payload_.in_memory()) return {.own = &payload_.in_memory()};
  references_ = references();
  return {.bytes = std::as_const(payload_).bytes(),
          .references = references_.get(),
          .deadline = deadline()};
}

void Incoming::answer(ReplyStatus status, OutgoingPointer reply) {
  if (is_answered_.exchange(true)) return;
  server_->reply(*this, status, std::move(reply));
}

void Incoming::fail(const std::string& why) {
  answer(ReplyStatus::kHandlerFailed, std::make_shared<OutgoingBytes>(why));
}

std::shared_ptr<ReferenceTable> Incoming::references() const {
  const std::lock_guard lock(server_->mutex_);
  return server_->references_.lock();
}

}  // namespace paceline::rpc
