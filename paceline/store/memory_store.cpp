#include "paceline/store/memory_store.h"

#include "paceline/core/vigil.h"
#include "paceline/store/store_errors.h"

namespace paceline {

void MemoryStore::set(const std::string& key, const std::string& value) {
  const std::lock_guard lock(mutex_);
  contents_.set(key, value);
  changed_.notify_all();
}

std::string MemoryStore::get(const std::string& key, std::chrono::milliseconds timeout) {
  return multi_get({key}, timeout).front();
}

std::int64_t MemoryStore::add(const std::string& key, std::int64_t amount) {
  const std::lock_guard lock(mutex_);
  const auto sum = contents_.add(key, amount);
  changed_.notify_all();
  return sum;
}

std::string MemoryStore::compare_set(const std::string& key, const std::string& expected,
                                     const std::string& desired) {
  const std::lock_guard lock(mutex_);
  auto value = contents_.compare_set(key, expected, desired);
  changed_.notify_all();
  return value;
}

void MemoryStore::append(const std::string& key, const std::string& value) {
  const std::lock_guard lock(mutex_);
  contents_.append(key, value);
  changed_.notify_all();
}

bool MemoryStore::delete_key(const std::string& key) {
  const std::lock_guard lock(mutex_);
  return contents_.erase(key);
}

bool MemoryStore::check(const std::vector<std::string>& keys) {
  check_keys(keys);
  const std::lock_guard lock(mutex_);
  return contents_.missing(keys).empty();
}

std::int64_t MemoryStore::num_keys() {
  const std::lock_guard lock(mutex_);
  return static_cast<std::int64_t>(contents_.size());
}

void MemoryStore::wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  wait_for(lock, keys, timeout);
}

std::vector<std::string> MemoryStore::multi_get(const std::vector<std::string>& keys,
                                                std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  wait_for(lock, keys, timeout);
  std::vector<std::string> values;
  for (const auto& key : keys) values.push_back(*contents_.find(key));
  return values;
}

void MemoryStore::multi_set(const std::vector<std::string>& keys,
                            const std::vector<std::string>& values) {
  check_pairs(keys, values);
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < keys.size(); ++i) contents_.set(keys[i], values[i]);
  changed_.notify_all();
}

void MemoryStore::wait_for(std::unique_lock<std::mutex>& lock, const std::vector<std::string>& keys,
                           std::chrono::milliseconds timeout) {
  check_keys(keys);
  const auto deadline = Deadline::after(timeout);
  const bool complete =
      wait_awake(changed_, lock, deadline, [&] { return contents_.missing(keys).empty(); });
  if (!complete) throw missing_keys_error(contents_.missing(keys), timeout);
}

}  // namespace paceline
