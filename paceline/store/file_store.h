#pragma once

// A store in one file that all ranks can open, on a local disk or a network file system with fcntl
// locks. Every change is appended under a lock; the file goes when its last user leaves. Fit for
// meeting each other, not for traffic: each call takes the lock, and a waiting one looks again
// whenever the file changes (at least every 50 ms).
//
// Thread safety: as Store.

#include <atomic>
#include <mutex>

#include "paceline/store/file_store_log.h"
#include "paceline/store/key_values.h"
#include "paceline/store/store.h"

namespace paceline {

class FileStore final : public Store {
 public:
  // `path` does not exist, is empty, or is in use by this run's other ranks. Error(kInvalid) for
  // anything else: a file that an earlier run left behind is refused with that run's process, host
  // and time.
  explicit FileStore(std::string path, std::chrono::milliseconds timeout = kDefaultStoreTimeout);

  using Store::get;
  using Store::multi_get;
  using Store::wait;
  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;
  std::int64_t add(const std::string& key, std::int64_t amount) override;
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired) override;
  void append(const std::string& key, const std::string& value) override;
  bool delete_key(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  std::int64_t num_keys() override;
  void wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) override;
  std::vector<std::string> multi_get(const std::vector<std::string>& keys,
                                     std::chrono::milliseconds timeout) override;
  void multi_set(const std::vector<std::string>& keys,
                 const std::vector<std::string>& values) override;
  std::chrono::milliseconds timeout() const override { return timeout_; }
  void set_timeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }

 private:
  // Runs `body` on the current contents, with thread and file locked.
  template <class Body>
  auto locked(Body body);
  void set_locked(const std::string& key, const std::string& value);

  std::atomic<std::chrono::milliseconds> timeout_;
  std::mutex mutex_;  // guards log_ and contents_
  FileStoreLog log_;
  KeyValues contents_;
};

}  // namespace paceline
