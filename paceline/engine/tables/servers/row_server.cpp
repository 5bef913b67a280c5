#include "paceline/engine/tables/servers/row_server.h"

#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/rpc/pool.h"
#include "paceline/engine/tables/host/table_memory.h"
#include "paceline/engine/tables/host/table_workers.h"
#include "paceline/engine/tables/servers/served_rows.h"

namespace paceline::tables {

namespace {

constexpr std::string_view kAt = " at ";  // names in a table's memory: "trainer0 at server1"

std::string backup_key(const std::string& server) { return "tables/backups/" + server; }
// The key of a list of the servers whose backup a worker is: one line for each start of a server.
std::string wards_key(const std::string& backup) { return "tables/wards/" + backup; }

// The name under which the other servers of the host find the memory of a server's part of a table.
std::string memory_name(const OpenRows& request) {
  return fmt::format("{} part {} of {}, map {}", request.table, request.server, request.num_servers,
                     request.epoch);
}

}  // namespace

// The tables of this server, and the tables that it keeps open for other servers.
class RowServer::HeldTables {
 public:
  std::shared_ptr<ServedRows> open(rpc::Workers& workers, const std::string& backup,
                                   const OpenRows& request, const std::string& worker) {
    const auto directory = std::make_shared<HostDirectory>(workers.store(), memory_name(request));
    const MemoryPointer memory = find(*directory, request);
    if (!backup.empty()) keep_at(workers, backup, request, *memory);
    SharedRowsOptions host{
        .worker = worker + std::string(kAt) + workers.name(),
        .is_lost = [&workers](const std::string& name) { return is_lost(workers, name); },
        .next_memory =
            [directory](const TableMemory& closed, MemoryPointer successor) {
              return directory->next(closed, std::move(successor));
            }};
    return std::make_shared<ServedRows>(memory, request, worker, std::move(host));
  }

  void hold(rpc::Workers& workers, const HoldRows::Request& request) {
    const OpenRows& open = request.open;
    const MemoryPointer memory = HostDirectory(workers.store(), memory_name(open))
                                     .find_or_make(settings_in(open), Deadline::after(kFind));
    check(memory->header().number == request.memory,
          "open_rows: table '{}': server {} cannot be the backup, because it is on another host",
          open.table, workers.name());
    const std::lock_guard lock(mutex_);
    held_[memory_name(open)] = {.request = open, .memory = memory};
  }

  // Lists all memory that this server holds open.
  HeldParts::Reply parts(rpc::Workers& workers) {
    HeldParts::Reply reply;
    const std::lock_guard lock(mutex_);
    const auto add = [&](Part& part) {
      if (!part.memory) return;
      refresh(HostDirectory(workers.store(), memory_name(part.request)), part);
      reply.parts.push_back({part.request, part.memory->header().number});
    };
    for (auto& [name, table] : tables_)
      for (auto& [number, part] : table.parts) add(part);
    for (auto& [name, part] : held_) add(part);
    return reply;
  }

  // Called after a restart: opens again the tables of the servers whose backup this server is.
  void hold_again(rpc::Workers& workers) {
    const std::string key = wards_key(workers.name());
    if (!workers.store()->check({key})) return;
    std::istringstream lines(workers.store()->get(key));
    std::set<std::string> wards;
    for (std::string name; std::getline(lines, name);) wards.insert(name);
    for (const rpc::WorkerInfo& worker : workers.list()) {
      if (worker.state != rpc::WorkerInfo::State::kPresent || !wards.contains(worker.name))
        continue;
      try {
        const auto held = workers.call<HeldParts>(worker.name, {}, {.deadline = kFind}).get();
        for (const HoldRows::Request& part : held.parts) hold(workers, part);
      } catch (const Error& error) {
        log::warning(fmt::format("server {}: cannot be the backup of {}: {}", workers.name(),
                                 worker.name, error.what()));
      }
    }
  }

 private:
  struct Part {
    OpenRows request{};
    MemoryPointer memory;
    bool is_kept = false;  // the backup has the memory
  };
  struct Table {
    std::uint64_t epoch = 0;  // of the slot map
    std::uint32_t num_servers = 0;
    std::map<std::uint32_t, Part> parts;  // by the number of the server
  };
  static constexpr std::chrono::seconds kFind{20};
  static constexpr std::chrono::milliseconds kCheck{200};

  // Whether the server in the name of a worker ("trainer0 at server1") is lost.
  static bool is_lost(rpc::Workers& workers, const std::string& name) {
    const std::size_t at = name.rfind(kAt);
    return at != std::string::npos && has_gone(workers, name.substr(at + kAt.size()));
  }

  MemoryPointer find(const HostDirectory& directory, const OpenRows& request) {
    const Settings settings = settings_in(request);
    const std::lock_guard lock(mutex_);
    const auto [found, is_new] = tables_.try_emplace(
        request.table, Table{.epoch = request.epoch, .num_servers = request.num_servers});
    Table& table = found->second;
    check(table.num_servers == request.num_servers && table.epoch == request.epoch,
          "open_rows: table '{}': this server has slot map {} of {} servers, but the request has "
          "slot map {} of {} servers; start the job again with a saved table",
          request.table, table.epoch, table.num_servers, request.epoch, request.num_servers);
    Part& part = table.parts[request.server];
    if (!part.memory) part.request = request;
    refresh(directory, part);
    const std::string difference = settings.difference(part.memory->settings());
    check(difference.empty(), "open_rows: table '{}' is open with other options: {}", request.table,
          difference);
    return part.memory;
  }

  // Opens the memory of a part if it is not open yet, or opens the new memory after a take-over.
  static void refresh(const HostDirectory& directory, Part& part) {
    MemoryPointer& memory = part.memory;
    const bool is_open =
        memory && memory->header().state == static_cast<std::uint32_t>(TableState::kOpen);
    if (!is_open)
      memory = directory.find_or_make(settings_in(part.request), Deadline::after(kFind));
  }

  void keep_at(rpc::Workers& workers, const std::string& backup, const OpenRows& request,
               const TableMemory& memory) {
    {
      const std::lock_guard lock(mutex_);
      if (tables_[request.table].parts[request.server].is_kept) return;
    }
    const auto is_gone = [&] {
      return workers.wait_until_gone(backup, std::chrono::milliseconds(0));
    };
    bool is_lost = false;
    try {
      const rpc::Pool::Blocked blocked;  // two servers may be each other's backups
      auto call = workers.call<HoldRows>(backup, {request, memory.header().number});
      do is_lost = is_gone();
      while (!is_lost && !call.wait_for(kCheck));
      if (!is_lost) call.get();
    } catch (const rpc::CallError& error) {
      is_lost = error.code() == ErrorCode::kPeerLost || is_gone();
      if (!is_lost) throw;
    }
    if (is_lost) {
      log::warning(fmt::format("server {}: table '{}' has no backup until worker {} is back",
                               workers.name(), request.table, backup));
      return;
    }
    const std::lock_guard lock(mutex_);
    tables_[request.table].parts[request.server].is_kept = true;
  }

  std::mutex mutex_;  // guards the members below
  std::map<std::string, Table> tables_;
  std::map<std::string, Part> held_;  // by the name of the memory
};

RowServer::RowServer() : held_(std::make_shared<HeldTables>()) {}
RowServer::~RowServer() = default;

void RowServer::serve(rpc::Workers& workers, const RowServerOptions& options) {
  if (!options.backup.empty()) {
    workers.store()->set(backup_key(workers.name()), options.backup);
    workers.store()->append(wards_key(options.backup), workers.name() + "\n");
  }
  workers.serve<HoldRows>(
      [shelf = held_, &workers](const HoldRows::Request& request, rpc::Context& /*context*/) {
        shelf->hold(workers, request);
        return rpc::Nothing{};
      });
  workers.serve<HeldParts>([shelf = held_, &workers](const rpc::Nothing&, rpc::Context&) {
    return shelf->parts(workers);
  });
  workers.serve_made_by<ServedRows>([shelf = held_, &workers, backup = options.backup](
                                        const OpenRows& request, rpc::Context& context) {
    return shelf->open(workers, backup, request, context.caller());
  });
  held_->hold_again(workers);
}

std::string internal::backup_of(Store& store, const std::string& server) {
  const std::string key = backup_key(server);
  return store.check({key}) ? store.get(key) : std::string();
}

}  // namespace paceline::tables
