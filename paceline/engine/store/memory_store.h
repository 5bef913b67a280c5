#pragma once

// The table of keys and values in which every kind of store keeps its contents, with the limits and
// the errors that all kinds share; and the memory store.

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/store/store.h"
#include "paceline/engine/store/store_request.h"

namespace paceline {

// A key as messages show it: quoted, shortened, and without control characters.
std::string quote_key(const std::string& key);
// The first eight keys, and the number of the others.
std::string quote_keys(const std::vector<std::string>& keys);

// An Error(kTimeout) which reports that the keys `missing` were not set within `timeout`.
Error missing_keys_error(const std::vector<std::string>& missing,
                         std::chrono::milliseconds timeout);

struct StoreLimits {
  std::size_t max_keys = 131072;
  std::size_t max_bytes = 256 << 20;  // for all keys and values together
};

// Keys, values and their limits, with every operation that does not wait. The memory store, the TCP
// server and the file store all keep their contents in a KeyValues object.
//
// Thread safety: none; the owner serialises the calls.
class KeyValues {
 public:
  explicit KeyValues(StoreLimits limits = {}) : limits_(limits) {}

  // The value of a key, valid until the next change; null when the key is absent.
  const std::string* find(const std::string& key) const;
  bool contains(const std::string& key) const { return find(key) != nullptr; }
  std::vector<std::string> missing(const std::vector<std::string>& keys) const;
  std::size_t size() const { return values_.size(); }

  // As in Store. Throws Error(kInvalid), naming the limit that would be exceeded, and then changes
  // nothing.
  void set(const std::string& key, const std::string& value);
  std::int64_t add(const std::string& key, std::int64_t amount);
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired);
  void append(const std::string& key, const std::string& value);
  bool erase(const std::string& key);
  // Carries out a request. A kSet that fails may have set some keys; the keys of a kGet must exist.
  StoreReply apply(const StoreRequest& request);

 private:
  StoreLimits limits_;
  std::unordered_map<std::string, std::string> values_;
  std::size_t bytes_ = 0;
};

// Throws Error(kInvalid) for a key that no store accepts.
void check_key(const std::string& key);
void check_keys(const std::vector<std::string>& keys);

// A store inside one process: for a group of one, for ranks that are threads, and for tests. By
// default it holds at most 256 MiB.
//
// Thread safety: as Store.
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
