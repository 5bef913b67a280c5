#pragma once

// Every rank arrives, none twice: how ranks take their places in a store that they share, and how
// they leave.
//
// Under "rendezvous/<generation>/<round>/" each rank claims "rank/<r>" with its host and process. A
// rank that sees all places taken sets "outcome" to "ready"; a rank that finds its own place taken,
// or cannot take part, sets it to the reason. A rank that has left arrives in the next round of the
// generation.

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/rendezvous/launch_environment.h"
#include "paceline/engine/store/store.h"

namespace paceline {

// The ranks that have arrived at the first meeting of a generation, and those that are missing.
// Both empty when no rank waits: none has arrived, or the meeting is over.
struct Absence {
  std::vector<int> waiting, missing;
  bool operator==(const Absence&) const = default;
};
// Read from the store of the meeting; the caller need not take part in it. Errors as Store's.
Absence absence_from_meeting(Store& store, int generation, int world_size);

class Arrival {
 public:
  // When a waiting rank logs which ranks are missing.
  struct LogTimes {
    std::chrono::milliseconds first, every;
  };
  static constexpr LogTimes kLogTimes = {std::chrono::seconds(10), std::chrono::seconds(30)};

  Arrival(std::shared_ptr<Store> store, const LaunchEnvironment& who);

  // Counts the meetings of this generation, from 0; the same on every rank.
  std::int64_t round() const { return round_; }

  // Takes this rank's place and waits for the others; errors as rendezvous().
  void meet(std::chrono::milliseconds timeout, LogTimes log_times = kLogTimes);
  // Instead of meet(): the other ranks get `reason` as the error of theirs.
  void decline(const Error& reason) { give_up(reason); }
  // For the rank that keeps the store: until all other ranks have arrived, so that they learn of
  // it.
  void wait_for_others(std::chrono::milliseconds timeout);
  // For each rank, a name of its host that differs between machines, boots and network namespaces.
  // Requires: meet() returned.
  std::vector<std::string> hosts();

  // This rank has left the meeting: its next one is of the next round.
  void leave();

 private:
  std::string key(const std::string& name) const;
  std::string place(int rank) const;
  std::vector<std::string> places() const;
  std::vector<int> missing_ranks();
  void check_world_size();
  void claim_place();
  // The outcome: this error, unless another one stands already.
  std::string give_up(const Error& error);
  std::string wait_for_outcome(Deadline deadline, std::chrono::milliseconds timeout,
                               LogTimes log_times);

  std::shared_ptr<Store> store_;
  LaunchEnvironment who_;
  std::int64_t round_;
  std::string prefix_;
};

}  // namespace paceline
