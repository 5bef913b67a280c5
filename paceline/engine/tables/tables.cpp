#include "paceline/engine/tables/tables.h"

#include "paceline/engine/tables/host/host_directory.h"
#include "paceline/engine/tables/host/shared_rows.h"
#include "paceline/engine/tables/servers/remote_rows.h"

namespace paceline::tables {

std::unique_ptr<Rows> Tables::open_rows(const std::string& name, const RowOptions& options,
                                        const TableOptions& table_options) {
  const Settings settings = Settings::of(name, options);
  if (!table_options.servers.empty()) {
    return std::make_unique<RemoteRows>(workers_, name, options,
                                        SlotMap::agree(*workers_.store(), table_options.servers),
                                        RemoteRowsOptions{.timeout = table_options.timeout,
                                                          .as_bfloat16 = table_options.as_bfloat16,
                                                          .session = table_options.session});
  }
  const auto directory = std::make_shared<HostDirectory>(workers_.store(), name);
  const Deadline deadline = Deadline::after(table_options.timeout);
  SharedRowsOptions shared{
      .table = name,
      .worker = workers_.name(),
      .session = table_options.session,
      .timeout = table_options.timeout,
      .torn_reads = table_options.allow_torn_reads ? TornReads::kAllowed : TornReads::kRefused,
      .is_lost =
          [&workers = workers_](const std::string& worker) {
            return workers.wait_until_gone(worker, std::chrono::milliseconds(0));
          },
      .next_memory =
          [directory](const TableMemory& closed, MemoryPointer successor) {
            return directory->next(closed, std::move(successor));
          }};
  for (;;) {
    try {
      return std::make_unique<SharedRows>(directory->find_or_make(settings, deadline), shared);
    } catch (const TableMoved&) {
      // The table moved between the two steps.
    }
  }
}

}  // namespace paceline::tables
