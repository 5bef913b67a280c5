#include "paceline/engine/store/memory_store.h"

#include <algorithm>
#include <cstddef>

#include <fmt/format.h>

#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/option_text.h"
#include "paceline/engine/store/store.h"

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

void check_key(const std::string& key) {
  check(!key.empty() && key.size() <= Store::kMaxKeyBytes,
        "a store's key must have 1 to {} bytes, but {} has {}", Store::kMaxKeyBytes, quote_key(key),
        key.size());
}

void check_keys(const std::vector<std::string>& keys) {
  for (const auto& key : keys) check_key(key);
}

const std::string* KeyValues::find(const std::string& key) const {
  const auto entry = values_.find(key);
  return entry == values_.end() ? nullptr : &entry->second;
}

std::vector<std::string> KeyValues::missing(const std::vector<std::string>& keys) const {
  std::vector<std::string> absent;
  for (const auto& key : keys) {
    if (!contains(key)) absent.push_back(key);
  }
  return absent;
}

void KeyValues::set(const std::string& key, const std::string& value) {
  check_key(key);
  check(value.size() <= Store::kMaxValueBytes,
        "a store's value may have up to {} bytes, but the value of {} would have {}",
        Store::kMaxValueBytes, quote_key(key), value.size());
  const std::string* old = find(key);
  check(old != nullptr || values_.size() < limits_.max_keys,
        "the store is full: it holds {} keys and accepts no new one ({})", values_.size(),
        quote_key(key));
  const std::size_t freed = old == nullptr ? 0 : key.size() + old->size();
  const std::size_t bytes = bytes_ - freed + key.size() + value.size();
  check(bytes <= limits_.max_bytes,
        "the store is full: with {} bytes for {} it would hold {} of at most {} bytes",
        value.size(), quote_key(key), bytes, limits_.max_bytes);
  values_[key] = value;
  bytes_ = bytes;
}

std::int64_t KeyValues::add(const std::string& key, std::int64_t amount) {
  const std::string* old = find(key);
  const auto before = parse_number<std::int64_t>(old == nullptr ? "0" : *old);
  if (!before) {
    fail(ErrorCode::kInvalid, "add: the value of {} is not a decimal number of 64 bits but {}",
         quote_key(key), quote_key(*old));
  }
  std::int64_t sum = 0;
  check(!__builtin_add_overflow(*before, amount, &sum), "add: {} + {} under {} overflows 64 bits",
        *before, amount, quote_key(key));
  set(key, std::to_string(sum));
  return sum;
}

std::string KeyValues::compare_set(const std::string& key, const std::string& expected,
                                   const std::string& desired) {
  check_key(key);
  const std::string* old = find(key);
  if (old == nullptr && !expected.empty()) return expected;
  if (old != nullptr && *old != expected) return *old;
  set(key, desired);
  return desired;
}

void KeyValues::append(const std::string& key, const std::string& value) {
  const std::string* old = find(key);
  set(key, old == nullptr ? value : *old + value);
}

bool KeyValues::erase(const std::string& key) {
  check_key(key);
  const auto entry = values_.find(key);
  if (entry == values_.end()) return false;
  bytes_ -= key.size() + entry->second.size();
  values_.erase(entry);
  return true;
}

StoreReply KeyValues::apply(const StoreRequest& request) {
  const auto& keys = request.keys;
  const auto& values = request.values;
  switch (request.command) {
    case StoreCommand::kSet:
      for (std::size_t i = 0; i < keys.size(); ++i) set(keys[i], values[i]);
      return {};
    case StoreCommand::kGet: {
      StoreReply reply;
      for (const auto& key : keys) reply.values.push_back(*find(key));
      return reply;
    }
    case StoreCommand::kAdd:
      return {0, add(keys[0], request.number), {}};
    case StoreCommand::kCompareSet:
      return {0, 0, {compare_set(keys[0], values[0], values[1])}};
    case StoreCommand::kAppend:
      append(keys[0], values[0]);
      return {};
    case StoreCommand::kDelete:
      return {0, erase(keys[0]) ? 1 : 0, {}};
    case StoreCommand::kCheck:
      return {0, missing(keys).empty() ? 1 : 0, {}};
    case StoreCommand::kNumKeys:
      return {0, static_cast<std::int64_t>(size()), {}};
    case StoreCommand::kWait:
      break;
  }
  return {};
}

StoreReply MemoryStore::run(const StoreRequest& request) {
  check_keys(request.keys);
  std::unique_lock lock(mutex_);
  if (request.waits()) {
    const std::chrono::milliseconds timeout(request.number);
    const auto complete = [&] { return contents_.missing(request.keys).empty(); };
    if (!wait_awake(changed_, lock, Deadline::after(timeout), complete)) {
      throw missing_keys_error(contents_.missing(request.keys), timeout);
    }
    return contents_.apply(request);
  }
  StoreReply reply = contents_.apply(request);
  changed_.notify_all();
  return reply;
}

}  // namespace paceline
