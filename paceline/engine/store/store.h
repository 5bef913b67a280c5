#pragma once

// A small key-value store through which the processes of a job find each other: it holds addresses,
// counts and barriers, not data. The operations and their corner cases are those of PyTorch's
// c10d::Store.
//
// Keys have 1 to kMaxKeyBytes bytes, values up to kMaxValueBytes; both are opaque bytes. Every
// operation may throw Error(kTimeout) when the store does not answer in time, kPeerLost when the
// process that hosts the store died, and kInvalid when a limit is exceeded.
//
// Thread safety: every method may be called from any thread. A blocking get or wait does not delay
// the calls of other threads.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace paceline {

struct StoreReply;
struct StoreRequest;

class Store {
 public:
  static constexpr std::size_t kMaxKeyBytes = 8 << 10;
  static constexpr std::size_t kMaxValueBytes = 8 << 20;
  static constexpr std::chrono::milliseconds kDefaultTimeout = std::chrono::seconds(300);

  explicit Store(std::chrono::milliseconds timeout = kDefaultTimeout) : timeout_(timeout) {}
  virtual ~Store() = default;

  void set(const std::string& key, const std::string& value) { multi_set({key}, {value}); }

  // Waits until `key` is set, and returns its value. Throws Error(kTimeout), which names the key.
  std::string get(const std::string& key, std::chrono::milliseconds timeout);
  std::string get(const std::string& key) { return get(key, timeout()); }

  // Adds `amount` to the decimal number stored under `key` (0 when absent) and returns the sum,
  // which is stored as decimal text. Throws Error(kInvalid) when the stored value is not a number.
  std::int64_t add(const std::string& key, std::int64_t amount);

  // Sets `key` to `desired` and returns `desired` if the current value equals `expected`, or if the
  // key is absent and `expected` is empty. Otherwise changes nothing and returns the current value,
  // or `expected` if the key is absent.
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired);

  // Appends to the value of `key` (empty when absent).
  void append(const std::string& key, const std::string& value);

  // Deletes a key; returns whether it existed.
  bool delete_key(const std::string& key);
  // Returns whether all keys exist, without waiting.
  bool check(const std::vector<std::string>& keys);
  std::int64_t num_keys();

  // Waits until all keys exist. Throws Error(kTimeout), which names the missing keys.
  void wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout);
  void wait(const std::vector<std::string>& keys) { wait(keys, timeout()); }

  // Waits until all keys are set, and returns their values, in one round trip.
  std::vector<std::string> multi_get(const std::vector<std::string>& keys,
                                     std::chrono::milliseconds timeout);
  std::vector<std::string> multi_get(const std::vector<std::string>& keys) {
    return multi_get(keys, timeout());
  }
  // Requires: keys.size() == values.size().
  void multi_set(const std::vector<std::string>& keys, const std::vector<std::string>& values);

  // The time limit of operations that are called without one. The default is kDefaultTimeout.
  virtual std::chrono::milliseconds timeout() const { return timeout_; }
  virtual void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }

  // Carries out any of the operations above, which only fill in a request.
  virtual StoreReply run(const StoreRequest& request) = 0;

 private:
  std::atomic<std::chrono::milliseconds> timeout_;
};

}  // namespace paceline
