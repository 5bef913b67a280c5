#include "paceline/collectives/backends/gloo/gloo_store.h"

#include <algorithm>

#include "paceline/core/check.h"

namespace paceline {
namespace {

// How often a wait for the store looks whether a peer has died.
constexpr std::chrono::milliseconds kSlice{50};

}  // namespace

void GlooStore::set(const std::string& key, const std::vector<char>& data) {
  context_.store->set(key, std::string(data.begin(), data.end()));
}

std::vector<char> GlooStore::get(const std::string& key) {
  wait({key});
  const std::string value = context_.store->get(key);
  return {value.begin(), value.end()};
}

void GlooStore::wait(const std::vector<std::string>& keys) {
  while (!context_.store->check(keys)) {
    context_.mesh.throw_if_failed();
    if (context_.deadline.expired()) {
      fail(ErrorCode::kTimeout, "rank {}: a rank of group {} did not come to connect with Gloo",
           context_.rank, context_.group);
    }
    try {
      context_.store->wait(keys, kSlice);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kTimeout) throw;
    }
  }
}

// Gloo's own limit would be 30 s; the group's stands.
void GlooStore::wait(const std::vector<std::string>& keys,
                     const std::chrono::milliseconds& /*timeout*/) {
  wait(keys);
}

}  // namespace paceline
