#include "paceline/engine/store/memory_store.h"

#include "paceline/engine/core/vigil.h"
#include "paceline/engine/store/store_errors.h"

namespace paceline {

StoreReply MemoryStore::run(const StoreRequest& request) {
  check_keys(request.keys);
  std::unique_lock lock(mutex_);
  if (request.waits()) {
    const std::chrono::milliseconds timeout(request.number);
    const auto complete = [&] { return contents_.missing(request.keys).empty(); };
    if (!wait_awake(changed_, lock, Deadline::after(timeout), complete)) {
      throw missing_keys_error(contents_.missing(request.keys), timeout);
    }
    return contents_.apply(request);
  }
  StoreReply reply = contents_.apply(request);
  changed_.notify_all();
  return reply;
}

}  // namespace paceline
