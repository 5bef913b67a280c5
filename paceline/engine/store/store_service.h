#pragma once

// The TCP server's logic without sockets: it takes requests of numbered clients and answers them,
// at once or later. A get or wait with missing keys is parked until all its keys exist, its
// deadline passes, or its client leaves.
//
// A parked request watches one missing key at a time, so that a barrier of n clients over n keys
// costs n look-ups per client, not n times n.
//
// Thread safety: none; the server's loop owns it. The caller passes the time as an argument.

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/store/memory_store.h"
#include "paceline/engine/store/store_protocol.h"
#include "paceline/engine/store/store_request.h"

namespace paceline {

class StoreService {
 public:
  using Client = std::uint64_t;
  using Moment = AwakeClock::time_point;
  struct Answer {
    Client client;
    StoreReply reply;
  };

  explicit StoreService(StoreLimits limits) : contents_(limits) {}

  // Returns the reply, or nullopt when the request is parked. Errors are returned as replies.
  // Requires: `client` has no parked request.
  std::optional<StoreReply> handle(Client client, StoreRequest request, Moment now);

  // Replies to parked requests that became due since the last call.
  std::vector<Answer> take_answers() { return std::exchange(answers_, {}); }
  // Answers the parked requests whose deadline has passed.
  void expire(Moment now);
  // The earliest deadline of the parked requests.
  std::optional<Moment> next_deadline() const;
  // Drops the parked request of a client that has left.
  void forget(Client client);
  std::size_t num_parked() const { return parked_.size(); }

 private:
  struct Parked {
    StoreRequest request;
    Moment deadline;
    std::size_t watched = 0;  // index of the missing key that it waits for now
  };

  StoreReply apply(const StoreRequest& request);
  std::optional<StoreReply> wait(Client client, StoreRequest request, Moment now);
  StoreReply complete(const StoreRequest& request);
  // The index of the first missing key at or after `from`, continuing at index 0 after the last
  // key; nullopt when all keys exist.
  std::optional<std::size_t> next_missing(const StoreRequest& request, std::size_t from) const;
  void wake(const std::string& key);
  void remove(Client client);

  KeyValues contents_;
  std::unordered_map<Client, Parked> parked_;
  std::unordered_map<std::string, std::set<Client>> watchers_;
  std::set<std::pair<Moment, Client>> deadlines_;
  std::vector<Answer> answers_;
};

}  // namespace paceline
