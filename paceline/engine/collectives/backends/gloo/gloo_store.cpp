#include "paceline/engine/collectives/backends/gloo/gloo_store.h"

#include "paceline/engine/collectives/backends/wait_for_keys.h"

namespace paceline {

void GlooStore::set(const std::string& key, const std::vector<char>& data) {
  context_.store->set(key, std::string(data.begin(), data.end()));
}

std::vector<char> GlooStore::get(const std::string& key) {
  wait({key});
  const std::string value = context_.store->get(key);
  return {value.begin(), value.end()};
}

void GlooStore::wait(const std::vector<std::string>& keys) {
  wait_for_keys(*context_.store, keys, context_.mesh, context_.deadline, "Gloo");
}

// Gloo's own limit would be 30 s; the group's stands.
void GlooStore::wait(const std::vector<std::string>& keys,
                     const std::chrono::milliseconds& /*timeout*/) {
  wait(keys);
}

}  // namespace paceline
