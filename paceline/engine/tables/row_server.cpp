#include "paceline/engine/tables/row_server.h"

#include <map>
#include <mutex>
#include <string>

#include "paceline/engine/core/check.h"
#include "paceline/engine/tables/served_rows.h"

namespace paceline::tables {

// The tables of this server.
struct RowServer::Shelf {
  struct Table {
    MemoryPointer memory;
    std::uint64_t epoch = 0;  // of the slot map
    std::uint32_t server = 0, num_servers = 0;
  };
  std::mutex mutex;  // guards tables
  std::map<std::string, Table> tables;

  MemoryPointer open(const OpenRows& request) {
    const Settings settings = settings_in(request);
    const std::lock_guard lock(mutex);
    Table& table = tables[request.table];
    if (!table.memory) {
      table = {.memory = TableMemory::make(settings, 1),
               .epoch = request.epoch,
               .server = request.server,
               .num_servers = request.num_servers};
    }
    const std::string difference = settings.difference(table.memory->settings());
    check(difference.empty(), "open_rows: table '{}' is open with other options: {}", request.table,
          difference);
    check(table.server == request.server && table.num_servers == request.num_servers &&
              table.epoch == request.epoch,
          "open_rows: table '{}': this server has slot map {}, in which it is number {} of {}, but "
          "the request has slot map {}, number {} of {}; start the job again with a saved table",
          request.table, table.epoch, table.server, table.num_servers, request.epoch,
          request.server, request.num_servers);
    return table.memory;
  }
};

RowServer::RowServer() : shelf_(std::make_shared<Shelf>()) {}
RowServer::~RowServer() = default;

void RowServer::serve(rpc::Workers& workers) {
  workers.serve_made_by<ServedRows>(
      [shelf = shelf_](const OpenRows& request, rpc::Context& context) {
        return std::make_shared<ServedRows>(shelf->open(request), request, context.caller());
      });
}

}  // namespace paceline::tables
