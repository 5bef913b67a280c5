#pragma once

// The directory of workers, in the job's store: an entry for each name, and a list of changes that
// every worker reads. No worker manages the list. Each worker enters and leaves by itself, and
// watches only the next worker in the order of names. It records the next worker as lost when that
// worker's process has ended, or when that worker has been silent for a lease.

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
#include "paceline/engine/rpc/worker_info.h"
#include "paceline/engine/store/store.h"

namespace paceline::rpc {

// The message with which a caller introduces itself when it opens a session.
struct Hello {
  std::string name, incarnation;
  std::uint64_t max_message = 0;  // the largest message that it accepts, in bytes
  static auto fields(auto& self) { return std::tie(self.name, self.incarnation, self.max_message); }
};

struct WorkerEntry {
  std::string name, role;
  std::string incarnation;  // random, new for each join()
  std::string host;         // host_token()
  std::string part;         // the part of the host: JoinOptions::host
  std::string pid_namespace;
  std::int32_t pid = 0;
  std::uint64_t start_ticks = 0;  // when the process started; with the pid, identifies the process
  std::string unix_name;          // where it listens for callers on its host
  std::string tcp_host;           // where it listens for callers on other hosts
  std::uint16_t tcp_port = 0;
  std::uint64_t max_message = 0;  // the largest message that it accepts, in bytes
  bool encrypts = false;          // on connections to other hosts
  WorkerInfo::State state{};
  static auto fields(auto& self) {
    return std::tie(self.name, self.role, self.incarnation, self.host, self.part,
                    self.pid_namespace, self.pid, self.start_ticks, self.unix_name, self.tcp_host,
                    self.tcp_port, self.max_message, self.encrypts, self.state);
  }
  bool operator==(const WorkerEntry&) const = default;

  // Whether Unix sockets can connect the two workers.
  bool shares_host_with(const WorkerEntry& other) const {
    return host == other.host && part == other.part;
  }
  Hello hello() const { return {name, incarnation, max_message}; }
  WorkerInfo info() const { return {name, role, state}; }
};

// Whether the worker's process has ended; also false for a process that this process cannot see.
bool is_gone(const WorkerEntry& entry);

// Thread safety: every method may be called from any thread; it may wait for the store, and throws
// the store's errors.
class Directory {
 public:
  Directory(std::shared_ptr<Store> store, LeaseTime lease)
      : store_(std::move(store)), lease_(lease) {}

  const std::shared_ptr<Store>& store() const { return store_; }

  // Adds the entry of a worker. Throws Error(kInvalid) if a worker of this name is present.
  void enter(const WorkerEntry& self);
  // Writes the new state, unless the worker is no longer present or another worker has its name.
  void change(const WorkerEntry& entry, WorkerInfo::State state);
  std::optional<WorkerEntry> find(const std::string& name);
  // All entries, including those of workers that have left or are lost.
  std::vector<WorkerEntry> all();
  // The error text for a name that no worker has, with the name that was probably meant.
  std::string unknown_worker_text(const std::string& name);

  // Called once a second, or four times per lease if that is more often: shows that `self` lives,
  // checks the next worker, and returns entries changed since the last call. `now`: boot_time().
  std::vector<WorkerEntry> look_around(const WorkerEntry& self, LeaseTime now);

 private:
  struct Watched {
    std::string incarnation;
    std::int64_t beats = 0;
    LeaseTime since{};
  };
  void publish_change(const std::string& name);
  std::vector<WorkerEntry> changed_since(std::size_t& begin);
  void beat(const WorkerEntry& self, LeaseTime now);
  void check_next_worker(const WorkerEntry& self, LeaseTime now);

  const std::shared_ptr<Store> store_;
  const LeaseTime lease_;

  std::mutex looking_;         // one look_around() at a time; guards the members below
  std::int64_t num_seen_ = 0;  // changes seen so far
  std::size_t num_read_ = 0;   // bytes read of the list
  std::map<std::string, WorkerEntry> known_;
  LeaseTime last_look_{0}, last_beat_{0};
  Watched next_;
};

}  // namespace paceline::rpc
