#pragma once

// A store inside one process: for a group of one, for ranks that are threads, and for tests. It
// holds at most 256 MiB.
//
// Thread safety: as Store.

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "paceline/store/key_values.h"
#include "paceline/store/store.h"

namespace paceline {

class MemoryStore final : public Store {
 public:
  explicit MemoryStore(StoreLimits limits = {}) : contents_(limits) {}

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
  // Returns with `lock` held and all keys there.
  void wait_for(std::unique_lock<std::mutex>& lock, const std::vector<std::string>& keys,
                std::chrono::milliseconds timeout);

  std::mutex mutex_;  // guards contents_
  std::condition_variable changed_;
  KeyValues contents_;
  std::atomic<std::chrono::milliseconds> timeout_ = kDefaultStoreTimeout;
};

}  // namespace paceline
