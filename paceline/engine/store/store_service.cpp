#include "paceline/engine/store/store_service.h"

#include <algorithm>

#include "paceline/engine/core/check.h"
#include "paceline/engine/store/memory_store.h"

namespace paceline {
namespace {

std::chrono::milliseconds timeout_of(const StoreRequest& request) {
  constexpr std::int64_t kLongest = 24LL * 365 * 3600 * 1000;
  return std::chrono::milliseconds(std::clamp<std::int64_t>(request.number, 0, kLongest));
}

}  // namespace

std::optional<StoreReply> StoreService::handle(Client client, StoreRequest request, Moment now) {
  try {
    check_keys(request.keys);
    if (request.waits()) return wait(client, std::move(request), now);
    return apply(request);
  } catch (const Error& error) {
    return error_reply(error);
  }
}

// Wakes the watchers of all keys even after an error, because a multi_set that failed may have set
// some of them.
StoreReply StoreService::apply(const StoreRequest& request) {
  StoreReply reply;
  try {
    reply = contents_.apply(request);
  } catch (const Error& error) {
    reply = error_reply(error);
  }
  for (const auto& key : request.keys) wake(key);
  return reply;
}

std::optional<StoreReply> StoreService::wait(Client client, StoreRequest request, Moment now) {
  const auto missing = next_missing(request, 0);
  if (!missing) return complete(request);
  const auto deadline = now + timeout_of(request);
  watchers_[request.keys[*missing]].insert(client);
  deadlines_.emplace(deadline, client);
  parked_.emplace(client, Parked{std::move(request), deadline, *missing});
  return std::nullopt;
}

// The sizes are added up before any value is copied, so that a reply over the frame limit is never
// built.
StoreReply StoreService::complete(const StoreRequest& request) {
  if (request.command == StoreCommand::kWait) return {};
  std::size_t bytes = 0;
  for (const auto& key : request.keys) bytes += 4 + contents_.find(key)->size();
  check(bytes < kMaxFrameBytes - 64,
        "multi_get: the {} values have {} bytes, one reply carries at most {}: ask for fewer keys "
        "in one call",
        request.keys.size(), bytes, kMaxFrameBytes);
  return contents_.apply(request);
}

std::optional<std::size_t> StoreService::next_missing(const StoreRequest& request,
                                                      std::size_t from) const {
  const std::size_t count = request.keys.size();
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t index = (from + i) % count;
    if (!contents_.contains(request.keys[index])) return index;
  }
  return std::nullopt;
}

void StoreService::wake(const std::string& key) {
  const auto entry = watchers_.find(key);
  if (entry == watchers_.end() || !contents_.contains(key)) return;
  const auto clients = std::move(entry->second);
  watchers_.erase(entry);
  for (const Client client : clients) {
    Parked& parked = parked_.at(client);
    if (const auto missing = next_missing(parked.request, parked.watched)) {
      parked.watched = *missing;
      watchers_[parked.request.keys[*missing]].insert(client);
      continue;
    }
    try {
      answers_.push_back({client, complete(parked.request)});
    } catch (const Error& error) {
      answers_.push_back({client, error_reply(error)});
    }
    remove(client);
  }
}

void StoreService::expire(Moment now) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const Client client = deadlines_.begin()->second;
    const StoreRequest& request = parked_.at(client).request;
    const auto error = missing_keys_error(contents_.missing(request.keys), timeout_of(request));
    answers_.push_back({client, error_reply(error)});
    remove(client);
  }
}

std::optional<StoreService::Moment> StoreService::next_deadline() const {
  if (deadlines_.empty()) return std::nullopt;
  return deadlines_.begin()->first;
}

void StoreService::forget(Client client) {
  if (parked_.contains(client)) remove(client);
}

void StoreService::remove(Client client) {
  const auto entry = parked_.find(client);
  const Parked& parked = entry->second;
  const auto watched = watchers_.find(parked.request.keys[parked.watched]);
  if (watched != watchers_.end()) {
    watched->second.erase(client);
    if (watched->second.empty()) watchers_.erase(watched);
  }
  deadlines_.erase({parked.deadline, client});
  parked_.erase(entry);
}

}  // namespace paceline
