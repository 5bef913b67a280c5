#pragma once

// Which workers there are: an entry for each name in the job's store, and a list of changes that
// every worker reads. No worker keeps the list. A worker enters and leaves by itself; each watches
// the next one in the order of names, so a worker whose process is gone, or that has been silent
// for a lease, is written down as lost, and no worker watches all.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "paceline/engine/rpc/protocol/session.h"
#include "paceline/engine/store/store.h"

namespace paceline::rpc {

enum class WorkerState : std::uint8_t {
  kPresent,
  kLeft,  // by leave()
  kLost,  // its process ended otherwise, or it has been silent for a lease
};

struct WorkerInfo {
  std::string name, role;
  WorkerState state{};
  bool operator==(const WorkerInfo&) const = default;
};

// How a caller introduces itself.
struct Hello {
  std::string name, incarnation;
  std::uint64_t max_message = 0;  // bytes that it takes
  static auto fields(auto& self) { return std::tie(self.name, self.incarnation, self.max_message); }
};

struct WorkerEntry {
  std::string name, role;
  std::string incarnation;  // random; another one for each join()
  std::string host;         // host_token()
  std::string part;         // of the host: JoinOptions::host
  std::string pid_namespace;
  std::int32_t pid = 0;
  std::uint64_t start_ticks = 0;  // of the process: with the pid it names it
  std::string unix_name;          // where it listens on its host
  std::string tcp_host;           // and for other hosts
  std::uint16_t tcp_port = 0;
  std::uint64_t max_message = 0;  // bytes that it takes
  bool encrypts = false;          // what goes to other hosts
  WorkerState state{};
  static auto fields(auto& self) {
    return std::tie(self.name, self.role, self.incarnation, self.host, self.part,
                    self.pid_namespace, self.pid, self.start_ticks, self.unix_name, self.tcp_host,
                    self.tcp_port, self.max_message, self.encrypts, self.state);
  }
  bool operator==(const WorkerEntry&) const = default;

  // Whether UNIX sockets connect the two.
  bool shares_host_with(const WorkerEntry& other) const {
    return host == other.host && part == other.part;
  }
  Hello hello() const { return {name, incarnation, max_message}; }
  WorkerInfo info() const { return {name, role, state}; }
};

// Whether its process has ended; false also for one that cannot be seen from here.
bool is_gone(const WorkerEntry& entry);

// Thread safety: all methods. Each may wait for the store and throws its errors.
class Directory {
 public:
  Directory(std::shared_ptr<Store> store, LeaseTime lease)
      : store_(std::move(store)), lease_(lease) {}

  // Error(kInvalid) if a worker of this name is present.
  void enter(const WorkerEntry& self);
  // Writes `state` unless the name belongs to another incarnation now, or is not present any more.
  void change(const WorkerEntry& entry, WorkerState state);
  std::optional<WorkerEntry> find(const std::string& name);
  // All entries, also of those that have left.
  std::vector<WorkerEntry> all();
  // The error text for a name that no worker has, with the name that was perhaps meant.
  std::string nobody(const std::string& name);

  // About once a second: shows that `self` lives, looks after the next worker, and returns what has
  // changed since the last call. `now` is boot_time().
  std::vector<WorkerEntry> look_around(const WorkerEntry& self, LeaseTime now);

 private:
  struct Watched {
    std::string incarnation;
    std::int64_t beats = 0;
    LeaseTime since{};
  };
  void tell_everybody(const std::string& name);
  std::vector<WorkerEntry> changed_since(std::size_t& begin);
  void beat(const WorkerEntry& self, LeaseTime now);
  void look_after_next(const WorkerEntry& self, LeaseTime now);

  const std::shared_ptr<Store> store_;
  const LeaseTime lease_;

  std::mutex looking_;         // one look_around() at a time; guards what follows
  std::int64_t num_seen_ = 0;  // changes
  std::size_t num_read_ = 0;   // bytes of their list
  std::map<std::string, WorkerEntry> known_;
  LeaseTime last_look_{0}, last_beat_{0};
  Watched next_;
};

}  // namespace paceline::rpc
