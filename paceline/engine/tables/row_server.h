#pragma once

// A server of tables: a worker whose process has the rows of some slots, for workers of other
// hosts. The first worker that opens a table makes it, in the server's memory.
//
//   tables::RowServer server;
//   auto workers = rpc::join({.prepare = [&](rpc::Workers& self) { server.serve(self); }});
//   workers->wait_until_gone("trainer0");
//
// Thread safety: every method may be called from any thread.

#include <memory>

#include "paceline/engine/rpc/workers.h"

namespace paceline::tables {

class RowServer {
 public:
  RowServer();
  // Requires: the worker that serves the tables has left.
  ~RowServer();
  RowServer(const RowServer&) = delete;
  RowServer& operator=(const RowServer&) = delete;

  // Serves the calls of Tables::open_rows() with TableOptions::servers.
  void serve(rpc::Workers& workers);

 private:
  struct Shelf;
  const std::shared_ptr<Shelf> shelf_;  // owners: this object and the open tables of workers
};

}  // namespace paceline::tables
