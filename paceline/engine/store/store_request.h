#pragma once

// A call of a store, whichever store it is, and what it returns. Values.

#include <cstdint>
#include <string>
#include <vector>

namespace paceline {

enum class StoreCommand : std::uint8_t {
  kSet = 1,         // keys, values
  kGet = 2,         // keys, number = timeout in ms -> values
  kAdd = 3,         // one key, number = amount -> number = sum
  kCompareSet = 4,  // one key, values = expected, desired -> values = result
  kAppend = 5,      // one key, one value
  kDelete = 6,      // one key -> number = 1 when it was there
  kCheck = 7,       // keys -> number = 1 when all are there
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
  // 0, or 1 + the ErrorCode; then values holds the message.
  std::uint8_t status = 0;
  std::int64_t number = 0;
  std::vector<std::string> values;
};

}  // namespace paceline
