#pragma once

// Paceline's own backend, for all types and operations. It uses shared memory among ranks that can
// map it, messages among other ranks, and both in a group that spans hosts. The ranks first agree
// on the numbers by which they choose algorithms, and on which ranks share memory; then each rank
// creates its executor.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "paceline/engine/collectives/backend.h"
#include "paceline/engine/collectives/backends/paceline/message_executor.h"
#include "paceline/engine/collectives/backends/paceline/point_to_point.h"
#include "paceline/engine/collectives/backends/paceline/shared_executor.h"
#include "paceline/engine/collectives/backends/paceline/symmetric_regions.h"
#include "paceline/engine/collectives/selection/planner.h"
#include "paceline/engine/transport/exchange.h"
#include "paceline/engine/transport/mesh.h"

namespace paceline {

struct EngineOptions {
  PlanningOptions planning;
  std::uint32_t generation = 0;  // the group's generation, which its fingerprints contain
  std::uint64_t group = 0;
  // Shared by this group, its parent groups and the groups made from it; never null.
  std::shared_ptr<SymmetricRegistry> symmetric = std::make_shared<SymmetricRegistry>();
};

// Makes the planner by which all ranks choose algorithms. Collective; a group of one rank sends
// nothing. `shares_memory`: whether this rank maps the memory of the other ranks of its host.
// Error(kInvalid) if the planning options differ from rank 0's; other errors are those of
// MessageExecutor::run().
Planner agree_on_planner(Mesh& mesh, Exchange& exchange, bool shares_memory,
                         const EngineOptions& options, Deadline deadline);

// The call of an all_gather: every rank gets the bytes of all ranks, in rank order.
Collective all_gather_of(std::span<const std::byte> mine, std::span<std::byte> all);

// The result of a rank's attempt, as the rank reports it to the others: success, with a text for
// the others to compare, or the rank's error.
struct Statement {
  bool is_accepted = true;
  std::uint8_t code = 0;
  char text[510] = {};

  static Statement accept(std::string_view text);
  static Statement refuse(const Error& error);
};
static_assert(sizeof(Statement) == 512);

// Gathers the statements of all ranks, so that all of them come to the same conclusion. `run`
// carries out a collective; a group of one rank does not call it.
std::vector<Statement> statements_of_all(const Statement& mine, std::size_t world_size,
                                         const std::function<void(const Collective& call)>& run);
// The first rank whose statement is a refusal.
std::optional<std::size_t> first_refusal(std::span<const Statement> all);

class PacelineBackend : public Backend {
 public:
  // Collective. If a rank gets no shared memory, all ranks of its host use messages instead, and
  // one of them logs a warning. Error(kInvalid) if the planning options differ from rank 0's.
  PacelineBackend(std::unique_ptr<Mesh> mesh, const EngineOptions& options, Deadline deadline);
  ~PacelineBackend() override { point_to_point_->close(); }

  const char* name() const override { return "paceline"; }
  const char* transport() const override;
  const Hosts& hosts() const override { return planner_.hosts(); }
  std::string explain(const PlanRequest& request) const override;
  bool supports(Op op, Dtype dtype, ReduceOp reduce_op, Device device) const override;
  void run(const Collective& call, const Fingerprint& fingerprint,
           const WaitOptions& wait) override;
  WorkPtr send(const PointToPointCall& call, Deadline deadline) override;
  WorkPtr receive(const PointToPointCall& call, Deadline deadline) override;
  SymmetricBuffer allocate_symmetric(std::size_t bytes, Pages pages, const Fingerprint& fingerprint,
                                     const WaitOptions& wait) override;
  bool is_symmetric(ConstBuffer buffer) override;
  std::vector<std::byte*> visited_addresses() const override {
    return shared_ ? shared_->visited() : std::vector<std::byte*>();
  }
  std::vector<int> throw_if_failed() override { return mesh_->throw_if_failed(); }
  void abort(const Error& cause) override;
  void foretell(const std::string& why) override { mesh_->foretell(why); }
  bool failed() const override { return mesh_->failed(); }

  // The group's mesh, for libraries that carry out the group's collectives: the mesh knows the
  // ranks and their failures.
  Mesh& mesh() const { return *mesh_; }

 private:
  // Carries out a call on the executor that this group has.
  void execute(const Collective& call, const Fingerprint& fingerprint, const WaitOptions& wait);
  // Gathers from all ranks facts that the engine needs, in a call with sequence number 0.
  void tell_all(std::span<const std::byte> mine, std::span<std::byte> all, Deadline deadline);
  void require_room(std::size_t bytes, Deadline deadline);
  void require_no_problem(const std::optional<Error>& own, const Fingerprint& fingerprint,
                          const WaitOptions& wait);
  // Runs a collective; an error in it fails the group and is sent to all ranks.
  template <class Operation>
  void guarded(Operation&& operation);

  const std::unique_ptr<Mesh> mesh_;
  const std::uint32_t generation_;
  const std::uint64_t group_;
  Exchange exchange_;
  const std::unique_ptr<GroupShare> group_share_;  // set only if all ranks are on one host
  const std::unique_ptr<HostShare> host_share_;    // set only if the group spans hosts
  const Planner planner_;
  std::optional<SharedExecutor> shared_;                // set if there is a group share
  std::optional<MessageExecutor> messages_;             // set if there is no group share
  const std::shared_ptr<PointToPoint> point_to_point_;  // owners: this object and waiting threads
};

}  // namespace paceline
