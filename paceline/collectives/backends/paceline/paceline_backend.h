#pragma once

// The library's own backend: shared memory where the ranks have it, messages otherwise, both in a
// group that spans hosts; all types and operations.

#include <memory>
#include <optional>
#include <span>

#include "paceline/collectives/backend.h"
#include "paceline/collectives/backends/paceline/message_executor.h"
#include "paceline/collectives/backends/paceline/point_to_point.h"
#include "paceline/collectives/backends/paceline/shared_executor.h"
#include "paceline/transport/mesh.h"

namespace paceline {

struct EngineOptions {
  PlanningOptions planning;
  std::uint32_t generation = 0;  // as in the fingerprints to come
  std::uint64_t group = 0;
  // Of all groups of this rank; never null.
  std::shared_ptr<SymmetricRegistry> symmetric = std::make_shared<SymmetricRegistry>();
};

class PacelineBackend : public Backend {
 public:
  // Collective. When a rank gets no shared memory, all ranks fall back to messages, with one
  // warning. Error(kInvalid) when ranks have other options than rank 0.
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
  std::vector<std::byte*> seen_by_all() const override {
    return shared_ ? shared_->visited() : std::vector<std::byte*>();
  }
  std::vector<int> throw_if_failed() override { return mesh_->throw_if_failed(); }
  void abort(const Error& cause) override;
  bool failed() const override { return mesh_->failed(); }

  // For libraries that carry out this group's collectives: who is there, and who has died.
  Mesh& mesh() const { return *mesh_; }

 private:
  bool is_one_host() const {
    return mesh_->neighbours().size() == static_cast<std::size_t>(mesh_->world_size());
  }
  template <class Share, class... Args>
  void try_to_share(std::optional<Share>& share, Deadline deadline, Args&&... args);
  void agree(PlanningOptions options, Deadline deadline);
  int own_package(const PlanningOptions& options) const;
  // An all_gather of what the engine needs to know; its sequence number is 0.
  void tell_all(std::span<const std::byte> mine, std::span<std::byte> all, Deadline deadline);
  void require_room(std::size_t bytes, Deadline deadline);
  void require_no_problem(const std::string& own, const Fingerprint& fingerprint,
                          const WaitOptions& wait);
  // Runs a collective; its error ends the group and is told to all ranks.
  template <class Operation>
  void guarded(Operation&& operation);
  [[noreturn]] void rethrow_aborting();

  const std::unique_ptr<Mesh> mesh_;
  const std::uint32_t generation_;
  const std::uint64_t group_;
  Planner planner_;
  std::optional<SharedExecutor> shared_;  // when all ranks are on one host
  std::optional<HostShare> host_share_;   // when only some are
  MessageExecutor messages_;
  const std::shared_ptr<PointToPoint> point_to_point_;  // owners: this, and who waits for a message
};

}  // namespace paceline
