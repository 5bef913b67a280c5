#pragma once

// How ranks arrive at a rendezvous in a store that they share, each exactly once, and how they
// leave.
//
// Under "rendezvous/<generation>/<round>/" each rank claims the key "rank/<r>", its *place*, with
// its host and process. A rank that finds all places claimed sets the key "outcome" to "ready"; a
// rank that finds its own place claimed, cannot take part or times out sets "outcome" to the
// reason. After a rank has left, its next arrival belongs to the next round of the generation.

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/rendezvous/launch_environment.h"
#include "paceline/engine/store/store.h"

namespace paceline {

// The ranks that wait in the first rendezvous of a generation, and the missing ones. Both lists are
// empty when no rank waits, because none has arrived yet or the rendezvous is over.
struct Absence {
  std::vector<int> waiting, missing;
  bool operator==(const Absence&) const = default;
};
// Reads both lists from the store of the rendezvous; the caller need not be one of the ranks.
// Throws the errors of Store.
Absence absence_from_meeting(Store& store, int generation, int world_size);

class Arrival {
 public:
  // `first`: how long a rank waits before it logs which ranks are missing. `every`: how long it
  // waits before it logs them again.
  struct LogTimes {
    std::chrono::milliseconds first, every;
  };
  static constexpr LogTimes kLogTimes = {std::chrono::seconds(10), std::chrono::seconds(30)};

  Arrival(std::shared_ptr<Store> store, const LaunchEnvironment& environment);

  // The number of this rendezvous within its generation, from 0; equal on every rank.
  std::int64_t round() const { return round_; }

  // Claims this rank's place and waits for the other ranks. Throws the errors of rendezvous().
  void meet(std::chrono::milliseconds timeout, LogTimes log_times = kLogTimes);
  // Called instead of meet(): meet() of the other ranks then throws an Error with this reason.
  void decline(const Error& reason) { give_up(reason); }
  // Called by the rank that hosts the store, before the store closes: waits until all other ranks
  // have arrived, so that they learn the outcome.
  void wait_for_others(std::chrono::milliseconds timeout);
  // The host of each rank, as a token that differs between machines, boots and network namespaces.
  // Requires: meet() has returned.
  std::vector<std::string> hosts();

  // Records that this rank has left the rendezvous; its next rendezvous belongs to the next round.
  void leave();

 private:
  std::string key(const std::string& name) const;
  std::string place(int rank) const;
  std::vector<std::string> places() const;
  std::vector<int> missing_ranks();
  void check_world_size();
  void claim_place();
  // Sets the outcome to this error, and returns the outcome, which may have been set before.
  std::string give_up(const Error& error);
  std::string wait_for_outcome(Deadline deadline, std::chrono::milliseconds timeout,
                               LogTimes log_times);

  std::shared_ptr<Store> store_;
  LaunchEnvironment environment_;
  std::int64_t round_;
  std::string prefix_;
};

}  // namespace paceline
