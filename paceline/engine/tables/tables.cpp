#include "paceline/engine/tables/tables.h"

#include <fmt/format.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/tables/host/shared_rows.h"
#include "paceline/engine/tables/host/table_memory.h"
#include "paceline/engine/tables/host/table_workers.h"
#include "paceline/engine/tables/servers/remote_rows.h"

namespace paceline::tables {

namespace {

// Waits until `wanted` workers have opened the table. Each worker counts once.
void wait_for_workers(rpc::Workers& workers, const std::string& table, int wanted,
                      std::chrono::milliseconds timeout) {
  Store& store = *workers.store();
  const std::string count = fmt::format("tables/opened/{}", table), all = count + "/all";
  const bool is_new = store.add(fmt::format("{}/by/{}", count, workers.name()), 1) == 1;
  if (is_new && store.add(count, 1) >= wanted) store.set(all, "1");
  try {
    store.wait({all}, timeout);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kTimeout) throw;
    fail(ErrorCode::kTimeout,
         "worker {}: open_rows: table '{}': {} of {} workers (num_workers) have opened it within "
         "{} s; every worker that trains the table must open it",
         workers.name(), table, store.add(count, 0), wanted,
         std::chrono::duration<double>(timeout).count());
  }
}

// Opens a table in the memory of this host.
std::unique_ptr<Rows> open_here(rpc::Workers& workers, const std::string& name,
                                const Settings& settings, const TableOptions& table_options) {
  const auto directory = std::make_shared<HostDirectory>(workers.store(), name);
  const Deadline deadline = Deadline::after(table_options.timeout);
  SharedRowsOptions shared{
      .table = name,
      .worker = workers.name(),
      .session = table_options.session,
      .timeout = table_options.timeout,
      .torn_reads = table_options.allow_torn_reads ? TornReads::kAllowed : TornReads::kRefused,
      .is_lost = [&workers](const std::string& worker) { return has_gone(workers, worker); },
      .next_memory =
          [directory](const TableMemory& closed, MemoryPointer successor) {
            return directory->next(closed, std::move(successor));
          }};
  return std::make_unique<SharedRows>(directory->find_or_make(settings, deadline),
                                      std::move(shared));
}

}  // namespace

void Rows::push_written(std::span<const Id> ids, const WriteGradient& write) {
  written_.resize(ids.size() * width());
  for (std::size_t i = 0; i < ids.size(); ++i)
    write(i, std::span(written_).subspan(i * width(), width()));
  push(ids, written_, std::nullopt);
}

void Rows::push(std::span<const Id> ids, std::span<const float> gradients) {
  push(ids, gradients, std::nullopt);
}

TableSnapshot Rows::snapshot() { return TableSnapshot(cut()); }

std::unique_ptr<Rows> Tables::open_rows(const std::string& name, const RowOptions& options,
                                        const TableOptions& table_options) {
  const Settings settings = Settings::of(name, options);
  std::unique_ptr<Rows> rows;
  if (table_options.servers.empty()) {
    rows = open_here(workers_, name, settings, table_options);
  } else {
    rows = std::make_unique<RemoteRows>(
        workers_, name, options, SlotMap::agree(*workers_.store(), name, table_options.servers),
        RemoteRowsOptions{.timeout = table_options.timeout,
                          .as_bfloat16 = table_options.as_bfloat16,
                          .session = table_options.session});
  }
  if (table_options.num_workers > 0)
    wait_for_workers(workers_, name, table_options.num_workers, table_options.timeout);
  return rows;
}

}  // namespace paceline::tables
