#pragma once

// Rows on servers of other hosts. A batch is divided among the servers by a slot map, and the
// servers are called at the same time. Each distinct id is sent once, with the sum of its
// gradients. If a server is lost, its part of the table is opened at its backup (row_server.h), and
// the call is made again there.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "paceline/engine/rpc/workers.h"
#include "paceline/engine/store/store.h"
#include "paceline/engine/tables/row_batch.h"
#include "paceline/engine/tables/row_options.h"
#include "paceline/engine/tables/rows.h"
#include "paceline/engine/tables/servers/served_rows.h"

namespace paceline::tables {

// Assigns slots of a table to servers. The map is a list of servers and an epoch: server i of n has
// the slots from 1,024 i / n up to 1,024 (i + 1) / n. The job's store has the newest map of each
// table; its epoch grows when a job opens the table with other servers. A server refuses a request
// that carries an epoch other than its own, or an id whose slot it does not have. Thread safety: a
// value.
struct SlotMap {
  std::uint64_t epoch = 0;
  std::vector<std::string> servers;

  // The number of the server that has the row of this id.
  std::size_t owner(Id id) const;

  // Returns the table's map with these servers, and writes it to the job's store if the newest map
  // there has other servers. Throws Error(kInvalid) for a list that is empty, longer than 1,024, or
  // has a name twice; errors of the store.
  static SlotMap agree(Store& store, const std::string& table,
                       const std::vector<std::string>& servers);
};

struct RemoteRowsOptions {
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
  bool as_bfloat16 = false;
  std::optional<std::uint64_t> session{};
};

class RemoteRows final : public Rows {
 public:
  // Opens the table on all servers. Throws CallError if a server does not answer, and errors of the
  // servers. Requires: `workers` outlives this object.
  RemoteRows(rpc::Workers& workers, const std::string& table, const RowOptions& options,
             SlotMap map, const RemoteRowsOptions& remote);

  using Rows::push;
  void pull(std::span<const Id> ids, std::span<float> values) override;
  void push(std::span<const Id> ids, std::span<const float> gradients,
            std::optional<std::uint64_t> number) override;
  void tick() override;
  const std::string& name() const override { return table_; }
  std::uint32_t width() const override { return width_; }
  Consistency consistency() const override { return consistency_; }
  double lr() const override { return state_of(0).lr; }
  void set_lr(double lr) override;
  std::uint64_t session() const override { return session_; }
  std::uint64_t sequence() const override;
  Rows::Stats stats() const override;
  TableCut cut() override;
  void restore(const TableCut& cut) override;
  void leave() override;

 private:
  using Ref = rpc::RemoteRef<ServedRows>;
  // The part of a batch that one server has.
  struct Share {
    std::vector<Id> ids;
    std::vector<std::size_t> places;  // indices into the batch's distinct ids
    std::vector<float> gradients;
    std::vector<std::uint16_t> bfloat16;
  };
  std::vector<Share> divide(const RowBatch& batch) const;
  rpc::CallOptions call_options() const;
  RowsState state_of(std::size_t part) const;
  void check_open(const char* operation) const;
  Ref server_of(std::size_t part) const;
  Ref open_at(const std::string& server, const OpenRows& request) const;
  bool is_lost(const std::string& server, const rpc::CallError& error) const;
  bool move_part(std::size_t part, const std::string& lost, const rpc::CallError& error) const;
  template <class Value>
  Value value_of(rpc::Future<Value> future, const std::string& server) const;
  template <class Call>
  auto call_server(std::size_t part, Call call) const;
  template <class Call, class Use>
  void on_servers(const std::vector<std::size_t>& parts, Call call, Use use) const;
  std::vector<std::size_t> all_parts() const;
  static std::vector<std::size_t> parts_of(const std::vector<Share>& shares);

  rpc::Workers& workers_;
  const std::string worker_, table_;
  const std::uint32_t width_;
  const Consistency consistency_;
  const SlotMap map_;
  const RemoteRowsOptions options_;
  OpenRows request_;
  std::uint64_t session_ = 0;
  mutable std::mutex moving_;         // guards servers_
  mutable std::vector<Ref> servers_;  // the server that has each part now
  std::atomic<bool> has_left_ = false;
  std::atomic<std::uint64_t> num_ticks_ = 0;
  std::mutex pushing_;  // one push, tick, cut or restore at a time; guards the members below
  std::uint64_t sequence_ = 0;  // the largest number of a push that has begun
  // The number and the digest of a push that has not reached all servers; digest 0: none.
  std::uint64_t unfinished_number_ = 0, unfinished_digest_ = 0;
};

}  // namespace paceline::tables
