#pragma once

// A store in one file that all ranks can open, on a local disk or a network file system with fcntl
// locks. Every change is appended under a lock; the file goes when its last user leaves. Fit for
// meeting each other, not for traffic: each call takes the lock, and a waiting one looks again
// whenever the file changes (at least every 50 ms).
//
// Thread safety: as Store.

#include <mutex>

#include "paceline/engine/store/file_store_log.h"
#include "paceline/engine/store/key_values.h"
#include "paceline/engine/store/store.h"
#include "paceline/engine/store/store_request.h"

namespace paceline {

class FileStore final : public Store {
 public:
  // `path` does not exist, is empty, or is in use by this run's other ranks. Error(kInvalid) for
  // anything else: a file that an earlier run left behind is refused with that run's process, host
  // and time.
  explicit FileStore(std::string path, std::chrono::milliseconds timeout = kDefaultStoreTimeout);

  StoreReply run(const StoreRequest& request) override;

 private:
  // Runs `body` on the current contents, with thread and file locked.
  template <class Body>
  auto locked(Body body);
  StoreReply wait_for(const StoreRequest& request);
  void write_to_log(const StoreRequest& request, const StoreReply& reply);

  std::mutex mutex_;  // guards log_ and contents_
  FileStoreLog log_;
  KeyValues contents_;
};

}  // namespace paceline
