#include "paceline/engine/store/store_errors.h"

#include <algorithm>
#include <cstddef>

#include <fmt/format.h>

namespace paceline {
namespace {

constexpr std::size_t kShownBytes = 80;
constexpr std::size_t kShownKeys = 8;

}  // namespace

std::string quote_key(const std::string& key) {
  std::string shown;
  for (const char c : key.substr(0, kShownBytes)) {
    const bool plain = c >= ' ' && c <= '~';
    shown += plain ? std::string(1, c) : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return fmt::format("'{}'{}", shown, key.size() > kShownBytes ? "..." : "");
}

std::string quote_keys(const std::vector<std::string>& keys) {
  std::string text;
  for (std::size_t i = 0; i < std::min(keys.size(), kShownKeys); ++i) {
    text += (i == 0 ? "" : ", ") + quote_key(keys[i]);
  }
  if (keys.size() > kShownKeys) text += fmt::format(" and {} more", keys.size() - kShownKeys);
  return text;
}

Error missing_keys_error(const std::vector<std::string>& missing,
                         std::chrono::milliseconds timeout) {
  return {
      ErrorCode::kTimeout,
      fmt::format("the store's {} {} not set within {} ms", missing.size() == 1 ? "key" : "keys",
                  quote_keys(missing) + (missing.size() == 1 ? " was" : " were"), timeout.count())};
}

}  // namespace paceline
