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

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace paceline {

inline constexpr std::chrono::milliseconds kDefaultStoreTimeout = std::chrono::seconds(300);

class Store {
 public:
  static constexpr std::size_t kMaxKeyBytes = 8 << 10;
  static constexpr std::size_t kMaxValueBytes = 8 << 20;

  virtual ~Store() = default;

  virtual void set(const std::string& key, const std::string& value) = 0;

  // The value of `key`, waiting until it is set. Error(kTimeout) names the key.
  virtual std::string get(const std::string& key, std::chrono::milliseconds timeout) = 0;
  std::string get(const std::string& key) { return get(key, timeout()); }

  // Adds `amount` to the decimal number stored under `key` (0 when absent) and returns the sum,
  // which is stored as decimal text. Error(kInvalid) when the stored value is not a number.
  virtual std::int64_t add(const std::string& key, std::int64_t amount) = 0;

  // absent and `expected` empty: sets `desired`, returns it. present and equal: sets `desired`,
  // returns it. present and unequal: returns the current value. absent and `expected` not empty:
  // returns `expected`, and the key stays absent.
  virtual std::string compare_set(const std::string& key, const std::string& expected,
                                  const std::string& desired) = 0;

  // Appends to the value of `key` (empty when absent).
  virtual void append(const std::string& key, const std::string& value) = 0;

  // True when the key was there.
  virtual bool delete_key(const std::string& key) = 0;
  // True when all keys are there. Does not wait.
  virtual bool check(const std::vector<std::string>& keys) = 0;
  virtual std::int64_t num_keys() = 0;

  // Waits until all keys are there. Error(kTimeout) names those that are missing.
  virtual void wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) = 0;
  void wait(const std::vector<std::string>& keys) { wait(keys, timeout()); }

  // The values of all keys, waiting for each, in one round trip.
  virtual std::vector<std::string> multi_get(const std::vector<std::string>& keys,
                                             std::chrono::milliseconds timeout) = 0;
  std::vector<std::string> multi_get(const std::vector<std::string>& keys) {
    return multi_get(keys, timeout());
  }
  // Requires: keys.size() == values.size().
  virtual void multi_set(const std::vector<std::string>& keys,
                         const std::vector<std::string>& values) = 0;

  // The limit of operations that were given none. kDefaultStoreTimeout until set.
  virtual std::chrono::milliseconds timeout() const = 0;
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;
};

}  // namespace paceline
