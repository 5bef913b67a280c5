#include "paceline/engine/rendezvous/hosted_store.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <iterator>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/core/option_text.h"
#include "paceline/engine/rendezvous/arrival.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

constexpr auto kUsesTimeout = 10s;
// How often the hosting rank checks whether the other ranks have disconnected.
constexpr auto kSlice = 50ms;

}  // namespace

HostedStore::HostedStore(std::unique_ptr<TcpStoreServer> server, std::shared_ptr<TcpStore> client,
                         int host, int self)
    : server_(std::move(server)), client_(std::move(client)), host_(host), self_(self) {}

HostedStore::~HostedStore() {
  if (!server_ || !owner_.is_this()) return;
  try {
    wait_for_uses();
  } catch (const std::exception& error) {
    log::debug(std::string("closing the store in which groups form: ") + error.what());
  }
}

void HostedStore::begin(const std::string& use, const std::vector<int>& ranks) {
  std::vector<int> awaited;
  std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(awaited),
               [&](int rank) { return self_ == host_ ? rank != host_ : rank == self_; });
  const std::lock_guard lock(mutex_);
  if (!awaited.empty()) uses_[use] = std::move(awaited);
}

void HostedStore::end(const std::string& use) noexcept {
  if (self_ == host_ || !owner_.is_this()) return;
  try {
    if (!forget(use)) return;
    client_->set(key_of(use, self_), "1");
  } catch (const std::exception& error) {
    log::debug(std::string("telling the host of the store: ") + error.what());
  }
}

bool HostedStore::forget(const std::string& use) {
  const std::lock_guard lock(mutex_);
  return uses_.erase(use) > 0;
}

std::string HostedStore::key_of(const std::string& use, int rank) {
  return fmt::format("ended/{}/{}", use, rank);
}

bool HostedStore::others_disconnected() const {
  return server_->num_clients() <= client_->num_idle_connections();
}

void HostedStore::wait_for_uses() {
  std::vector<std::string> keys;
  for (const auto& [use, ranks] : uses_) {
    for (const int rank : ranks) keys.push_back(key_of(use, rank));
  }
  auto deadline = Deadline::after(kUsesTimeout);
  for (Vigil vigil; !client_->check(keys);) {
    if (others_disconnected()) return;
    if (vigil.sees_passed(deadline)) return warn_of_uses();
    try {
      client_->wait(keys, kSlice);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kTimeout) throw;
    }
  }
}

void HostedStore::warn_of_uses() {
  std::set<int> late;
  for (const auto& [use, ranks] : uses_) {
    for (const int rank : ranks) {
      if (!client_->check({key_of(use, rank)})) late.insert(rank);
    }
  }
  log::warning(fmt::format(
      "rank {} has finished and is closing the store through which {} still form{} a group: "
      "forming that group will fail; "
      "let rank {} wait until the group has formed, for instance in a barrier",
      self_, ranks_text({late.begin(), late.end()}), late.size() == 1 ? "s" : "", self_));
}

StoreUse::StoreUse(std::shared_ptr<HostedStore> store, std::string use,
                   const std::vector<int>& ranks)
    : store_(std::move(store)), use_(std::move(use)) {
  if (store_) store_->begin(use_, ranks);
}

StoreUse::~StoreUse() {
  if (store_) store_->end(use_);
}

}  // namespace paceline
