#pragma once

// A server of tables: a worker whose process has the rows of some slots, for workers of other
// hosts. The first worker that opens a table makes it, in memory of the server's host.
//
//   tables::RowServer server;
//   auto workers = rpc::join({.prepare = [&](rpc::Workers& self) { server.serve(self); }});
//   workers->wait_until_gone("trainer0");
//
// The memory outlives the server's process if another server of the host, its backup, keeps it
// open. When the server is lost, its workers continue at the backup, in the same memory: their
// sessions are in it, so each push is applied exactly once. A server that is started again under
// the same name becomes a backup again: it opens the memory of the servers whose backup it is.
//
// Thread safety: every method may be called from any thread.

#include <memory>
#include <string>

#include "paceline/engine/rpc/workers.h"

namespace paceline::tables {

struct RowServerOptions {
  // The name of the backup; empty: none. Two servers may be each other's backups. A backup does not
  // help synchronous tables, whose pushes of the current clock are lost with the server.
  std::string backup{};
};

class RowServer {
 public:
  RowServer();
  // Requires: the worker that serves the tables has left.
  ~RowServer();
  RowServer(const RowServer&) = delete;
  RowServer& operator=(const RowServer&) = delete;

  // Serves the calls of Tables::open_rows() with TableOptions::servers, until `workers` leaves.
  // Opening a table fails with rpc::ReferenceError if the backup is on another host, or if it lives
  // and does not answer.
  void serve(rpc::Workers& workers, const RowServerOptions& options = {});

 private:
  class HeldTables;
  const std::shared_ptr<HeldTables> held_;  // owners: this object and the handlers of the worker
};

inline namespace internal {

// The name of the backup that a server has announced in the job's store; empty if it has none.
std::string backup_of(Store& store, const std::string& server);

}  // namespace internal

}  // namespace paceline::tables
