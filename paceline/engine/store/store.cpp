#include "paceline/engine/store/store.h"

#include <utility>

#include "paceline/engine/core/check.h"
#include "paceline/engine/store/memory_store.h"
#include "paceline/engine/store/prefix_store.h"
#include "paceline/engine/store/store_request.h"

namespace paceline {

std::string Store::get(const std::string& key, std::chrono::milliseconds timeout) {
  return multi_get({key}, timeout).front();
}

std::int64_t Store::add(const std::string& key, std::int64_t amount) {
  return run({StoreCommand::kAdd, amount, {key}, {}}).number;
}

std::string Store::compare_set(const std::string& key, const std::string& expected,
                               const std::string& desired) {
  return run({StoreCommand::kCompareSet, 0, {key}, {expected, desired}}).values.at(0);
}

void Store::append(const std::string& key, const std::string& value) {
  run({StoreCommand::kAppend, 0, {key}, {value}});
}

bool Store::delete_key(const std::string& key) {
  return run({StoreCommand::kDelete, 0, {key}, {}}).number != 0;
}

bool Store::check(const std::vector<std::string>& keys) {
  return run({StoreCommand::kCheck, 0, keys, {}}).number != 0;
}

std::int64_t Store::num_keys() { return run({StoreCommand::kNumKeys, 0, {}, {}}).number; }

void Store::wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) {
  run({StoreCommand::kWait, timeout.count(), keys, {}});
}

std::vector<std::string> Store::multi_get(const std::vector<std::string>& keys,
                                          std::chrono::milliseconds timeout) {
  return run({StoreCommand::kGet, timeout.count(), keys, {}}).values;
}

void Store::multi_set(const std::vector<std::string>& keys,
                      const std::vector<std::string>& values) {
  paceline::check(keys.size() == values.size(), "multi_set got {} keys but {} values", keys.size(),
                  values.size());
  run({StoreCommand::kSet, 0, keys, values});
}

PrefixStore::PrefixStore(std::string prefix, std::shared_ptr<Store> below)
    : prefix_(std::move(prefix) + "/"), below_(std::move(below)) {
  paceline::check(below_ != nullptr, "a PrefixStore '{}' needs a store below it", prefix_);
}

// The keys are checked first, so that an empty key stays an error instead of becoming the prefix.
StoreReply PrefixStore::run(const StoreRequest& request) {
  check_keys(request.keys);
  StoreRequest longer = request;
  for (std::string& key : longer.keys) key.insert(0, prefix_);
  return below_->run(longer);
}

}  // namespace paceline
