#include "paceline/engine/store/prefix_store.h"

#include <utility>

#include "paceline/engine/core/check.h"
#include "paceline/engine/store/key_values.h"

namespace paceline {

PrefixStore::PrefixStore(std::string prefix, std::shared_ptr<Store> below)
    : prefix_(std::move(prefix) + "/"), below_(std::move(below)) {
  paceline::check(below_ != nullptr, "a PrefixStore '{}' needs a store below it", prefix_);
}

// An empty key stays an error instead of becoming the prefix.
StoreReply PrefixStore::run(const StoreRequest& request) {
  check_keys(request.keys);
  StoreRequest longer = request;
  for (std::string& key : longer.keys) key.insert(0, prefix_);
  return below_->run(longer);
}

}  // namespace paceline
