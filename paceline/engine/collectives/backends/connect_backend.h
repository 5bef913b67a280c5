#pragma once

// Connects the ranks of a group: Paceline's engine first, over which they then compare their choice
// of backend, then the chosen libraries.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "paceline/engine/collectives/backend.h"
#include "paceline/engine/collectives/backends/library.h"
#include "paceline/engine/collectives/backends/paceline/paceline_backend.h"
#include "paceline/engine/collectives/selection/planner.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/rendezvous/rendezvous.h"
#include "paceline/engine/transport/formation/connect.h"

namespace paceline {

class FailureDomain;
class SymmetricRegistry;

// A group whose collectives are carried out by other libraries, one per kind of memory, where the
// ranks chose any, and by Paceline's engine otherwise.
//
// Before a library touches a byte the ranks meet in the engine and compare their calls, so a
// mismatch, a missing or a dead rank is the same typed error with every backend; that costs one
// barrier of the engine a call, and with oneCCL an agreement about turns (docs/backends.md).
// Barriers, send and recv, symmetric memory, operations with unequal counts, what makes other
// groups and groups of one are the engine's alone. What goes wrong inside a library is an error of
// the group, and the engine's lifelines say which rank died.
class LibraryBackend : public PacelineBackend {
 public:
  struct Libraries {
    std::unique_ptr<Library> cpu;   // null: the engine itself
    std::unique_ptr<Library> cuda;  // null: none
  };
  // The engine alone, until use(). `name` is the choice's text.
  LibraryBackend(std::string name, std::unique_ptr<Mesh> mesh, const EngineOptions& options,
                 Deadline deadline)
      : PacelineBackend(std::move(mesh), options, deadline), name_(std::move(name)) {}
  // Requires: the libraries are connected, and no call was made yet.
  void use(Libraries libraries) { libraries_ = std::move(libraries); }

  const char* name() const override { return name_.c_str(); }
  const char* transport() const override;
  std::string explain(const PlanRequest& request) const override;
  bool supports(Op op, Dtype dtype, ReduceOp reduce_op, Device device) const override;
  void run(const Collective& call, const Fingerprint& fingerprint,
           const WaitOptions& wait) override;
  bool is_symmetric(ConstBuffer buffer) override;
  void abort(const Error& cause) override;

 private:
  Library* library_of(Device device) const {
    return (device == Device::kCuda ? libraries_.cuda : libraries_.cpu).get();
  }
  [[noreturn]] void fail_with(const Error& error);

  const std::string name_;
  Libraries libraries_;  // destroyed before the engine, whose mesh they look at
};

struct BackendOptions {
  std::string group;             // its name
  std::uint64_t group_hash = 0;  // of the name
  int rank = 0;                  // in the group
  std::vector<int> world_ranks;  // of its members in the job
  std::string choice;            // as parse_backend_choice() takes it
  LinkOptions link;
  PlanningOptions planning;
  std::chrono::milliseconds timeout{300'000};
  std::function<std::vector<int>()> look_after_parent = {};  // as ConnectOptions has it
  std::shared_ptr<SymmetricRegistry> symmetric;              // of all groups of this rank
  std::shared_ptr<FailureDomain> failures;                   // likewise

  // As messages call a member, and this rank.
  std::string name_of(std::size_t member) const {
    return rank_name(static_cast<int>(member), world_ranks[member]);
  }
  std::string self() const { return name_of(static_cast<std::size_t>(rank)); }
};

// Collective. When the ranks chose differently, or one of them cannot have what it chose, every
// rank gets Error(kInvalid) or Error(kUnsupported) that says which. Otherwise the errors of
// connect_mesh() and of the libraries.
std::unique_ptr<Backend> connect_backend(const Rendezvous& rendezvous,
                                         const BackendOptions& options);

}  // namespace paceline
