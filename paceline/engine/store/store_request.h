#pragma once

// A request to any store, and the reply to it, as values.
//
// Thread safety: none; these are plain values.

#include <cstdint>
#include <string>
#include <vector>

#include "paceline/engine/store/store.h"

namespace paceline {

enum class StoreCommand : std::uint8_t {
  kSet = 1,         // keys, values
  kGet = 2,         // keys, number = timeout in ms -> values
  kAdd = 3,         // one key, number = amount -> number = sum
  kCompareSet = 4,  // one key, values = expected, desired -> values = result
  kAppend = 5,      // one key, one value
  kDelete = 6,      // one key -> number = 1 when it existed
  kCheck = 7,       // keys -> number = 1 when all exist
  kNumKeys = 8,     // -> number
  kWait = 9,        // keys, number = timeout in ms
};

struct StoreRequest {
  StoreCommand command = StoreCommand::kNumKeys;
  std::int64_t number = 0;
  std::vector<std::string> keys;
  std::vector<std::string> values;

  bool waits() const { return command == StoreCommand::kGet || command == StoreCommand::kWait; }
};

struct StoreReply {
  // 0, or 1 + the ErrorCode of an error whose message is in `values`.
  std::uint8_t status = 0;
  std::int64_t number = 0;
  std::vector<std::string> values;
};

}  // namespace paceline
