#pragma once

// The processes of a program that trains tables. The program runs as a single process, as the ranks
// of one host, which share the tables in memory, or as trainers and servers:
//
//   PROGRAM
//   paceline run --nproc-per-node 2 PROGRAM
//   paceline run --roles trainer=2,server=1 --until trainer PROGRAM

#include <memory>
#include <string>
#include <vector>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/rpc/workers.h"
#include "paceline/engine/tables/servers/row_server.h"
#include "paceline/engine/tables/tables.h"
#include "paceline/training/parameter_server/dense_table.h"

namespace table_job {

class TableJob {
 public:
  // Collective over the job. Throws Error(kInvalid) if all ranks are servers.
  explicit TableJob(const std::shared_ptr<paceline::ProcessGroup>& world);

  bool is_server() const { return is_server_; }
  // Serves tables until trainer0 has left. Requires: is_server().
  void serve();

  // The trainers are "trainer0", "trainer1", ...
  paceline::rpc::Workers& workers() const { return *workers_; }
  // The group of the trainers.
  const std::shared_ptr<paceline::ProcessGroup>& trainers() const { return trainers_; }
  // Opens a table in the memory of this host, or on the servers if the job has some.
  std::unique_ptr<paceline::tables::Rows> open_rows(
      const std::string& name, const paceline::tables::RowOptions& options) const;
  std::unique_ptr<paceline::tables::DenseTable> open_dense(
      const std::string& name, std::vector<at::Tensor> parameters,
      const paceline::tables::DenseOptions& options) const;
  // "in this host's memory" or "on 2 servers".
  std::string place() const;

 private:
  bool is_server_ = false;
  std::vector<std::string> servers_;
  std::shared_ptr<paceline::ProcessGroup> trainers_;
  paceline::tables::RowServer held_;  // outlives workers_
  std::unique_ptr<paceline::rpc::Workers> workers_;
};

// Reads "synchronous", "bounded:4" or "asynchronous". Throws paceline::apps::UsageError.
paceline::tables::Consistency consistency_in(const std::string& text);

}  // namespace table_job
