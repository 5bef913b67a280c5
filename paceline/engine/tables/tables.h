#pragma once

// Opens tables of rows for the workers of a job (rpc/workers.h). docs/tables.md has the guarantees.
//
//   auto workers = rpc::join();
//   tables::Tables tables(*workers);
//   auto rows = tables.open_rows("item", {.width = 64, .optimizer = tables::RowAdagrad{0.02}});

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "paceline/engine/rpc/workers.h"
#include "paceline/engine/tables/row_options.h"
#include "paceline/engine/tables/rows.h"

namespace paceline::tables {

struct TableOptions {
  // The session of a worker that died and whose last push this worker repeats; default: a new one.
  std::optional<std::uint64_t> session{};
  // Above 0: open_rows() returns when this many workers of the job have opened the table, so that
  // the first clocks of a synchronous or bounded table have the pushes of all of them. A worker
  // that opens the table after that does not wait.
  int num_workers = 0;
  // How long a call waits for other workers that are alive.
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
  // A pull may mix elements of two steps of a row; such reads are counted
  // (Rows::Stats::torn_reads).
  bool allow_torn_reads = false;
  // The names of the servers that have the rows (row_server.h); empty: the workers of this host
  // share a table in its memory.
  std::vector<std::string> servers{};
  // Receives rows from servers, and sends gradients to them, as bfloat16.
  bool as_bfloat16 = false;
};

// Thread safety: every method may be called from any thread.
class Tables {
 public:
  // Requires: `workers` outlives this object and the rows that it opens.
  explicit Tables(rpc::Workers& workers) : workers_(workers) {}

  // Opens a table. Without servers all workers of this host share it; the first one makes it, and
  // it lives as long as one of them has it open. With servers it lives as long as they do, and all
  // workers must name the same servers in the same order. A worker must not open a table twice at a
  // time. Throws Error(kInvalid) for options that are impossible or differ from those of the first
  // worker, and names the option; Error(kSystem) if the system has no memory for it, or if the
  // memory of the other workers cannot be mapped; Error(kTimeout) if fewer workers than
  // TableOptions::num_workers have opened it in time; rpc::CallError if a server does not answer;
  // errors of the store.
  std::unique_ptr<Rows> open_rows(const std::string& name, const RowOptions& options,
                                  const TableOptions& table_options = {});

  rpc::Workers& workers() const { return workers_; }

 private:
  rpc::Workers& workers_;
};

}  // namespace paceline::tables
