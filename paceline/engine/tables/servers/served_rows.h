#pragma once

// A table as one worker of another host has it open: an object of a server, which that worker holds
// by a lease. If the worker dies, or is frozen for longer than the lease, the object goes, and with
// it the worker's place in the table: no other worker waits for its clock any more.
//
// Thread safety: the calls of a worker come one at a time.

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "paceline/engine/rpc/remote_ref.h"
#include "paceline/engine/tables/host/shared_rows.h"
#include "paceline/engine/tables/servers/row_messages.h"

namespace paceline::tables {

class ServedRows {
 public:
  static constexpr std::string_view kName = "tables.rows";
  using Arguments = OpenRows;

  // `memory` is the server's table; `worker` the one that opens it. `host` has the worker's name in
  // that memory, and the functions that depend on the host.
  ServedRows(MemoryPointer memory, const OpenRows& request, const std::string& worker,
             SharedRowsOptions host);

  PulledRows pull(const PullRows& request);
  rpc::Nothing push(const PushRows& request);
  // A tick that has ended here is not repeated, even if it failed on another server.
  rpc::Nothing tick(const TickRows& request);
  rpc::Nothing set_lr(const LearningRate& request);
  RowsState state(const rpc::Nothing& nothing) const;
  CutPart cut(const CutRange& range);
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
  std::optional<TableCut> cut_;  // that the worker is reading, or restoring
  std::vector<float> gradients_;
};

// The request of a worker for its table on a server, and the options in it. `settings_in()` throws
// Error(kInvalid) for options that no table can have.
OpenRows request_of(const std::string& table, const RowOptions& options);
Settings settings_in(const OpenRows& request);

// A cut in parts of some megabytes.
CutPart part_of(const TableCut& cut, std::uint64_t begin, std::uint64_t count);
void append(TableCut& cut, const CutPart& part);
inline constexpr std::uint64_t kCutPartBytes = 16 << 20;

}  // namespace paceline::tables
