#pragma once

// A group whose collectives are carried out by other libraries, one per kind of memory, with
// Paceline's engine beside them.
//
// Before a library touches a byte the ranks meet in the engine and compare their calls, so a
// mismatch, a missing or a dead rank is the same typed error with every backend; that costs one
// barrier of the engine a call, and with oneCCL an agreement about turns (docs/backends.md).
// Barriers, send and recv, symmetric memory, operations with unequal counts, what makes other
// groups and groups of one are the engine's alone. What goes wrong inside a library is an error of
// the group, and the engine's lifelines say which rank died.

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

class LibraryBackend : public Backend {
 public:
  struct Libraries {
    std::unique_ptr<Library> cpu;   // null: the engine itself
    std::unique_ptr<Library> cuda;  // null: none
  };
  // `name` is the choice's text. Requires: the libraries are connected.
  LibraryBackend(std::string name, std::unique_ptr<PacelineBackend> engine, Libraries libraries)
      : name_(std::move(name)), engine_(std::move(engine)), libraries_(std::move(libraries)) {}

  const char* name() const override { return name_.c_str(); }
  const char* transport() const override;
  const Hosts& hosts() const override { return engine_->hosts(); }
  std::string explain(const PlanRequest& request) const override;
  bool supports(Op op, Dtype dtype, ReduceOp reduce_op, Device device) const override;
  void run(const Collective& call, const Fingerprint& fingerprint,
           const WaitOptions& wait) override;
  WorkPtr send(const PointToPointCall& call, Deadline deadline) override;
  WorkPtr receive(const PointToPointCall& call, Deadline deadline) override;
  SymmetricBuffer allocate_symmetric(std::size_t bytes, Pages pages, const Fingerprint& fingerprint,
                                     const WaitOptions& wait) override;
  bool is_symmetric(ConstBuffer buffer) override;
  std::vector<std::byte*> seen_by_all() const override { return engine_->seen_by_all(); }
  std::vector<int> throw_if_failed() override { return engine_->throw_if_failed(); }
  void abort(const Error& cause) override;
  bool failed() const override { return engine_->failed(); }

 private:
  Library* library_of(Device device) const {
    return (device == Device::kCuda ? libraries_.cuda : libraries_.cpu).get();
  }
  [[noreturn]] void fail_with(const Error& error);

  const std::string name_;
  const std::unique_ptr<PacelineBackend> engine_;
  const Libraries libraries_;  // destroyed before the engine, whose mesh they look at
};

// Connects the ranks of a group: Paceline's engine first, over which they then compare their choice
// of backend, then the chosen libraries.

class FailureDomain;
class SymmetricRegistry;

struct BackendOptions {
  std::string group;             // its name
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
