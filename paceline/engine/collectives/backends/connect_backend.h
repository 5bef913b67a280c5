#pragma once

// Connects the ranks of a group. They first connect Paceline's engine, over which they compare
// their choices of backend; then they connect the chosen libraries.

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
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/rendezvous/rendezvous.h"
#include "paceline/engine/transport/formation/connect.h"

namespace paceline {

class FailureDomain;
class SymmetricRegistry;

// A backend whose collectives are carried out by the libraries that the ranks chose, one per kind
// of memory, and by Paceline's engine for calls that the libraries do not carry out.
//
// Before a library touches a byte, the ranks meet in the engine and compare their calls. So every
// backend reports the same typed error for calls that differ, for a missing rank and for a dead
// one. That costs one barrier of the engine for each call and, with oneCCL, an agreement about
// turns (docs/network.md). The engine alone carries out barriers, messages in host memory,
// allocations of symmetric memory, visits, operations that make groups and, for host memory,
// operations with unequal counts and all calls of a group of one rank. An error inside a library is
// an error of the group, and the engine's lifelines show which rank died.
class LibraryBackend : public PacelineBackend {
 public:
  struct Libraries {
    std::unique_ptr<Library> cpu;   // null: the engine carries out the calls
    std::unique_ptr<Library> cuda;  // null: no library for CUDA memory
  };
  // Uses the engine alone until use() is called. `name` is the text of the backend choice.
  LibraryBackend(std::string name, std::unique_ptr<Mesh> mesh, const EngineOptions& options,
                 Deadline deadline)
      : PacelineBackend(std::move(mesh), options, deadline), name_(std::move(name)) {}
  // Uses these libraries. Requires: they are connected, and no call has been made yet.
  void use(Libraries libraries) { libraries_ = std::move(libraries); }

  const char* name() const override { return name_.c_str(); }
  const char* transport() const override;
  std::string explain(const PlanRequest& request) const override;
  bool supports(Op op, Dtype dtype, ReduceOp reduce_op, Device device) const override;
  bool takes_parts(Device device) const override {
    const Library* const library = library_of(device);
    return library != nullptr && library->takes_parts();
  }
  bool takes_messages(Device device) const override {
    return device == Device::kCpu || (libraries_.cuda && libraries_.cuda->takes_messages());
  }
  void run(const Collective& call, const Fingerprint& fingerprint,
           const WaitOptions& wait) override;
  WorkPtr send(const PointToPointCall& call, Deadline deadline) override {
    return start(Op::kSend, call, deadline);
  }
  WorkPtr receive(const PointToPointCall& call, Deadline deadline) override {
    return start(Op::kReceive, call, deadline);
  }
  // Sends or receives a message, or its announcement, over the engine.
  WorkPtr announce(Op op, const PointToPointCall& call, Deadline deadline) {
    return op == Op::kSend ? PacelineBackend::send(call, deadline)
                           : PacelineBackend::receive(call, deadline);
  }
  bool is_symmetric(ConstBuffer buffer) override;
  void abort(const Error& cause) override;
  // Fails the group after a library's error; returns the error to report (LibraryContext).
  Error fail_group(const Error& error);

 private:
  WorkPtr start(Op op, const PointToPointCall& call, Deadline deadline) {
    return call.device == Device::kCpu ? announce(op, call, deadline)
                                       : libraries_.cuda->start(op, call, deadline);
  }
  Library* library_of(Device device) const {
    return (device == Device::kCuda ? libraries_.cuda : libraries_.cpu).get();
  }

  const std::string name_;
  Libraries libraries_;  // destroyed before the engine, whose mesh they use
};

struct BackendOptions {
  std::string group;             // the group's name
  std::uint64_t group_hash = 0;  // a hash of the name
  int rank = 0;                  // this rank in the group
  std::vector<int> world_ranks;  // the members' ranks in the job
  std::string choice;            // the backend choice, as parse_backend_choice() takes it
  LinkOptions link;
  PlanningOptions planning;
  std::chrono::milliseconds timeout{300'000};
  std::function<std::vector<int>()> look_after_parent = {};  // passed to ConnectOptions
  std::shared_ptr<SymmetricRegistry> symmetric;              // shared by related groups
  std::shared_ptr<FailureDomain> failures;                   // shared by related groups

  // The names of a member and of this rank in messages.
  std::string name_of(std::size_t member) const {
    return rank_name(static_cast<int>(member), world_ranks[member]);
  }
  std::string self() const { return name_of(static_cast<std::size_t>(rank)); }
};

// Collective. If the ranks chose differently, or a chosen backend is not available on one of them,
// every rank throws Error(kInvalid) or Error(kUnsupported) that names the rank. Other errors are
// those of connect_mesh(), of PacelineBackend's constructor and of the libraries.
std::unique_ptr<Backend> connect_backend(const Rendezvous& rendezvous,
                                         const BackendOptions& options);

}  // namespace paceline
