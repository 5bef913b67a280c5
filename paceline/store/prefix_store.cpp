#include "paceline/store/prefix_store.h"

#include <utility>

#include "paceline/core/check.h"
#include "paceline/store/key_values.h"

namespace paceline {

PrefixStore::PrefixStore(std::string prefix, std::shared_ptr<Store> below)
    : prefix_(std::move(prefix) + "/"), below_(std::move(below)) {
  paceline::check(below_ != nullptr, "a PrefixStore '{}' needs a store below it", prefix_);
}

// An empty key stays an error instead of becoming the prefix.
std::string PrefixStore::longer(const std::string& key) const {
  check_key(key);
  return prefix_ + key;
}

std::vector<std::string> PrefixStore::longer(const std::vector<std::string>& keys) const {
  std::vector<std::string> result;
  result.reserve(keys.size());
  for (const auto& key : keys) result.push_back(longer(key));
  return result;
}

void PrefixStore::set(const std::string& key, const std::string& value) {
  below_->set(longer(key), value);
}
std::string PrefixStore::get(const std::string& key, std::chrono::milliseconds timeout) {
  return below_->get(longer(key), timeout);
}
std::int64_t PrefixStore::add(const std::string& key, std::int64_t amount) {
  return below_->add(longer(key), amount);
}
std::string PrefixStore::compare_set(const std::string& key, const std::string& expected,
                                     const std::string& desired) {
  return below_->compare_set(longer(key), expected, desired);
}
void PrefixStore::append(const std::string& key, const std::string& value) {
  below_->append(longer(key), value);
}
bool PrefixStore::delete_key(const std::string& key) { return below_->delete_key(longer(key)); }
bool PrefixStore::check(const std::vector<std::string>& keys) {
  return below_->check(longer(keys));
}
std::int64_t PrefixStore::num_keys() { return below_->num_keys(); }
void PrefixStore::wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) {
  below_->wait(longer(keys), timeout);
}
std::vector<std::string> PrefixStore::multi_get(const std::vector<std::string>& keys,
                                                std::chrono::milliseconds timeout) {
  return below_->multi_get(longer(keys), timeout);
}
void PrefixStore::multi_set(const std::vector<std::string>& keys,
                            const std::vector<std::string>& values) {
  below_->multi_set(longer(keys), values);
}

}  // namespace paceline
