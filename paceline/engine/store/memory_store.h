#pragma once

// A store inside one process: for a group of one, for ranks that are threads, and for tests. It
// holds at most 256 MiB.
//
// Thread safety: as Store.

#include <condition_variable>
#include <mutex>

#include "paceline/engine/store/key_values.h"
#include "paceline/engine/store/store.h"
#include "paceline/engine/store/store_request.h"

namespace paceline {

class MemoryStore final : public Store {
 public:
  explicit MemoryStore(StoreLimits limits = {}) : contents_(limits) {}

  StoreReply run(const StoreRequest& request) override;

 private:
  std::mutex mutex_;  // guards contents_
  std::condition_variable changed_;
  KeyValues contents_;
};

}  // namespace paceline
