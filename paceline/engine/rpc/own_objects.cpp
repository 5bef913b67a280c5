// What a handler does with the objects of its own worker: finds one, or leaves one behind for the
// caller.

#include "paceline/engine/core/check.h"
#include "paceline/engine/rpc/server.h"

namespace paceline::rpc {

std::shared_ptr<void> Incoming::find_own(std::uint64_t class_number, ObjectNumber number) const {
  return server_->objects_.find_of(class_number, number);
}

void Incoming::keep_own(std::uint64_t class_number, ObjectNumber number,
                        std::shared_ptr<void> kept) {
  // A caller that gave the call up has released the object already, so it would stay for ever.
  bool is_wanted = false, is_new = false;
  {
    const std::lock_guard lock(session_->mutex);
    is_wanted = !session_->has_ended && !is_cancelled();
    is_new = is_wanted &&
             server_->objects_.keep(number, class_number, session_->number, std::move(kept));
  }
  if (!is_wanted) {
    throw Error(ErrorCode::kAborted, "the caller does not wait for the object any more");
  }
  check(is_new, "an object has the number {} already", number);
}

}  // namespace paceline::rpc
