#pragma once

// The messages between workers and the servers of a table, and the object of a server that answers
// them.
//
// Thread safety: the methods of one ServedRows are called one at a time.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "paceline/engine/rpc/protocol/message.h"
#include "paceline/engine/rpc/remote_ref.h"
#include "paceline/engine/tables/host/shared_rows.h"
#include "paceline/engine/tables/row_options.h"
#include "paceline/engine/tables/rows.h"
#include "paceline/engine/tables/table_cut.h"

namespace paceline::tables {

struct OpenRows {
  std::string table;
  // RowOptions, field by field.
  std::uint32_t width = 0, optimizer = 0;
  std::vector<double> optimizer_numbers;  // the learning rate first
  std::uint32_t consistency = 0, bound = 0;
  std::uint64_t capacity = 0, seed = 0, candidates = 0, expire_after = 0;
  std::uint32_t admit_after = 0;
  float initial_range = 0;

  std::optional<std::uint64_t> session, new_session;
  std::int64_t timeout_ms = 0;
  std::uint64_t epoch = 0;  // of the slot map
  std::uint32_t server = 0, num_servers = 1;
  std::uint64_t ticks = 0;  // ticks that have ended, for a worker that comes from a lost server
  static auto fields(auto& m) {
    return std::tie(m.table, m.width, m.optimizer, m.optimizer_numbers, m.consistency, m.bound,
                    m.capacity, m.seed, m.candidates, m.expire_after, m.admit_after,
                    m.initial_range, m.session, m.new_session, m.timeout_ms, m.epoch, m.server,
                    m.num_servers, m.ticks);
  }
};

// Asks a server of the same host to keep the memory of a table open.
struct HoldRows {
  static constexpr std::string_view kName = "tables.hold";
  static constexpr rpc::Effect kEffect = rpc::Effect::kRepeatable;
  struct Request {
    OpenRows open;
    std::uint64_t memory = 0;  // TableHeader::number
    static auto fields(auto& m) { return std::tie(m.open, m.memory); }
  };
  using Reply = rpc::Nothing;
};

// Asks a server which memory it holds open. Sent by a backup that was started again.
struct HeldParts {
  static constexpr std::string_view kName = "tables.parts";
  static constexpr rpc::Effect kEffect = rpc::Effect::kRepeatable;
  using Request = rpc::Nothing;
  struct Reply {
    std::vector<HoldRows::Request> parts;
    static auto fields(auto& m) { return std::tie(m.parts); }
  };
};

struct PullRows {
  std::uint64_t epoch = 0;
  bool as_bfloat16 = false;
  std::span<const Id> ids;
  static auto fields(auto& m) { return std::tie(m.epoch, m.as_bfloat16, m.ids); }
};
struct PulledRows {
  std::vector<float> values;
  std::vector<std::uint16_t> bfloat16;
  static auto fields(auto& m) { return std::tie(m.values, m.bfloat16); }
};

struct PushRows {
  std::uint64_t epoch = 0, sequence = 0;
  std::span<const Id> ids;  // all distinct
  std::span<const float> gradients;
  std::span<const std::uint16_t> bfloat16;
  static auto fields(auto& m) {
    return std::tie(m.epoch, m.sequence, m.ids, m.gradients, m.bfloat16);
  }
};

struct TickRows {
  std::uint64_t number = 0;  // counts the ticks of this worker since it opened the table
  static auto fields(auto& m) { return std::tie(m.number); }
};

struct RowsState {
  std::uint64_t session = 0, sequence = 0;
  double lr = 0;
  std::uint64_t epoch = 0, rows = 0, clock = 0, pulls = 0, pulled_ids = 0, pushed_ids = 0,
                pushed_rows = 0, duplicate_pushes = 0, dropped_gradients = 0, torn_reads = 0,
                expired_rows = 0, largest_staleness = 0, evicted_workers = 0, repaired_updates = 0;
  double mean_staleness = 0;
  static auto fields(auto& m) {
    return std::tie(m.session, m.sequence, m.lr, m.epoch, m.rows, m.clock, m.pulls, m.pulled_ids,
                    m.pushed_ids, m.pushed_rows, m.duplicate_pushes, m.dropped_gradients,
                    m.torn_reads, m.expired_rows, m.largest_staleness, m.evicted_workers,
                    m.repaired_updates, m.mean_staleness);
  }
};

struct LearningRate {
  double lr = 0;
  static auto fields(auto& m) { return std::tie(m.lr); }
};

// Asks for a part of a cut, which has some of the ids. The first part has the sessions.
struct CutRange {
  bool is_first = false;  // the server then takes the cut
  std::uint64_t begin = 0, count = 0;
  static auto fields(auto& m) { return std::tie(m.is_first, m.begin, m.count); }
};
struct CutPart {
  std::uint64_t num_ids = 0;  // in the whole cut
  bool is_last = false;
  std::uint32_t width = 0, row_floats = 0;
  std::string optimizer;
  std::uint64_t seed = 0, now = 0;
  float initial_range = 0;
  double lr = 0;
  std::vector<Id> ids;
  std::vector<std::int32_t> sightings;
  std::vector<std::int64_t> used, sessions;
  std::vector<std::uint8_t> admitted;
  std::vector<float> rows;
  std::uint64_t begin = 0;  // the number of ids before this part; 0: begins a cut
  static auto fields(auto& m) {
    return std::tie(m.num_ids, m.is_last, m.width, m.row_floats, m.optimizer, m.seed, m.now,
                    m.initial_range, m.lr, m.ids, m.sightings, m.used, m.sessions, m.admitted,
                    m.rows, m.begin);
  }
};

// One remote worker's access to a table on this server: an object that the worker holds by a lease.
// If the worker dies, or is frozen for longer than the lease, the object is destroyed, and the
// worker loses its slot in the table: no other worker waits for its clock any more.
class ServedRows {
 public:
  static constexpr std::string_view kName = "tables.rows";
  using Arguments = OpenRows;

  // `memory` holds this server's part of the table, which the worker `worker` opens. `host` has the
  // name under which that worker joins `memory`, and the functions is_lost and next_memory.
  ServedRows(MemoryPointer memory, const OpenRows& request, const std::string& worker,
             SharedRowsOptions host);

  PulledRows pull(const PullRows& request);
  rpc::Nothing push(const PushRows& request);
  // Does nothing if this server has already completed the tick: the worker repeats a tick on all
  // servers if it failed on one of them.
  rpc::Nothing tick(const TickRows& request);
  rpc::Nothing set_lr(const LearningRate& request);
  RowsState state(const rpc::Nothing& nothing) const;
  CutPart cut(const CutRange& range);
  // The first part of a cut replaces what an interrupted cut() or restore() has left.
  rpc::Nothing restore(const CutPart& part);

  static auto methods() {
    using rpc::Effect;
    return std::tuple(rpc::method<&ServedRows::pull>("pull", Effect::kRepeatable),
                      rpc::method<&ServedRows::push>("push", Effect::kOnce),
                      rpc::method<&ServedRows::tick>("tick", Effect::kOnce),
                      rpc::method<&ServedRows::set_lr>("set_lr", Effect::kOnce),
                      rpc::method<&ServedRows::state>("state", Effect::kRepeatable),
                      rpc::method<&ServedRows::cut>("cut", Effect::kOnce),
                      rpc::method<&ServedRows::restore>("restore", Effect::kOnce));
  }

 private:
  void check_owner(const char* operation, std::uint64_t epoch, std::span<const Id> ids) const;

  const std::string worker_;
  const std::uint64_t epoch_;
  const std::uint32_t server_, num_servers_;
  SharedRows rows_;
  std::uint64_t num_ticks_;
  std::optional<TableCut> cut_;  // the cut that the worker is reading or restoring, if any
  std::vector<float> gradients_;
};

// request_of() makes a worker's request to open a table on a server; settings_in() reads the
// options in it, and throws Error(kInvalid) for options that no table can have.
OpenRows request_of(const std::string& table, const RowOptions& options);
Settings settings_in(const OpenRows& request);

// A cut is sent in parts of some megabytes: part_of() copies a part, append() adds it to a cut.
CutPart part_of(const TableCut& cut, std::uint64_t begin, std::uint64_t count);
void append(TableCut& cut, const CutPart& part);
inline constexpr std::uint64_t kCutPartBytes = 16 << 20;

}  // namespace paceline::tables
