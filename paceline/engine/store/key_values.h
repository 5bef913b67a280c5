#pragma once

// What a store holds: keys, values and their limits, with the exact meaning of every operation that
// does not wait. The memory store, the TCP server and the file store's replay all work on one of
// these.
//
// Thread safety: none; the owner serialises.

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "paceline/engine/store/store_request.h"

namespace paceline {

struct StoreLimits {
  std::size_t max_keys = 131072;
  std::size_t max_bytes = 256 << 20;  // of all keys and values together
};

class KeyValues {
 public:
  explicit KeyValues(StoreLimits limits = {}) : limits_(limits) {}

  // Nothing when the key is absent. Valid until the next change.
  const std::string* find(const std::string& key) const;
  bool contains(const std::string& key) const { return find(key) != nullptr; }
  std::vector<std::string> missing(const std::vector<std::string>& keys) const;
  std::size_t size() const { return values_.size(); }

  // As in Store. Error(kInvalid) names the limit that would be passed; nothing has changed then.
  void set(const std::string& key, const std::string& value);
  std::int64_t add(const std::string& key, std::int64_t amount);
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired);
  void append(const std::string& key, const std::string& value);
  bool erase(const std::string& key);
  // Requires: the keys of kGet and kWait are there.
  StoreReply apply(const StoreRequest& request);

 private:
  StoreLimits limits_;
  std::unordered_map<std::string, std::string> values_;
  std::size_t bytes_ = 0;
};

// Error(kInvalid) for a key that no store takes.
void check_key(const std::string& key);
void check_keys(const std::vector<std::string>& keys);

}  // namespace paceline
