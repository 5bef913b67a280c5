#pragma once

// A small key-value store through which the processes of a job find each other: addresses, counts,
// barriers. Not for data. The operations and their corner cases are those of PyTorch's c10d::Store.
//
// Keys have 1 to kMaxKeyBytes bytes, values up to kMaxValueBytes; both are opaque bytes. Every
// operation may throw Error(kTimeout) when the store does not answer within timeout(), kPeerLost
// when its host died, kInvalid for a limit.
//
// Thread safety: every method may be called from any thread. A blocking get or wait does not hold
// up other threads' calls.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace paceline {

inline constexpr std::chrono::milliseconds kDefaultStoreTimeout = std::chrono::seconds(300);

struct StoreReply;
struct StoreRequest;

class Store {
 public:
  static constexpr std::size_t kMaxKeyBytes = 8 << 10;
  static constexpr std::size_t kMaxValueBytes = 8 << 20;

  explicit Store(std::chrono::milliseconds timeout = kDefaultStoreTimeout) : timeout_(timeout) {}
  virtual ~Store() = default;

  void set(const std::string& key, const std::string& value) { multi_set({key}, {value}); }

  // The value of `key`, waiting until it is set. Error(kTimeout) names the key.
  std::string get(const std::string& key, std::chrono::milliseconds timeout);
  std::string get(const std::string& key) { return get(key, timeout()); }

  // Adds `amount` to the decimal number stored under `key` (0 when absent) and returns the sum,
  // which is stored as decimal text. Error(kInvalid) when the stored value is not a number.
  std::int64_t add(const std::string& key, std::int64_t amount);

  // absent and `expected` empty: sets `desired`, returns it. present and equal: sets `desired`,
  // returns it. present and unequal: returns the current value. absent and `expected` not empty:
  // returns `expected`, and the key stays absent.
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired);

  // Appends to the value of `key` (empty when absent).
  void append(const std::string& key, const std::string& value);

  // True when the key was there.
  bool delete_key(const std::string& key);
  // True when all keys are there. Does not wait.
  bool check(const std::vector<std::string>& keys);
  std::int64_t num_keys();

  // Waits until all keys are there. Error(kTimeout) names those that are missing.
  void wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout);
  void wait(const std::vector<std::string>& keys) { wait(keys, timeout()); }

  // The values of all keys, waiting for each, in one round trip.
  std::vector<std::string> multi_get(const std::vector<std::string>& keys,
                                     std::chrono::milliseconds timeout);
  std::vector<std::string> multi_get(const std::vector<std::string>& keys) {
    return multi_get(keys, timeout());
  }
  // Requires: keys.size() == values.size().
  void multi_set(const std::vector<std::string>& keys, const std::vector<std::string>& values);

  // The limit of operations that were given none. kDefaultStoreTimeout until set.
  virtual std::chrono::milliseconds timeout() const { return timeout_; }
  virtual void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }

  // Carries out any of the calls above, which only fill a request in (store_request.h).
  virtual StoreReply run(const StoreRequest& request) = 0;

 private:
  std::atomic<std::chrono::milliseconds> timeout_;
};

}  // namespace paceline
