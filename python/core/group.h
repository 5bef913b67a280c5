#pragma once

// A group of the engine, and its operations under way, as Python uses them. Buffers are addresses
// and counts of elements; the layer above knows tensors and arrays.
//
// A blocking call runs in the calling thread without the GIL. An asynchronous call gets an object
// (`keep`) that owns the buffers' memory; the group holds it until the operation has completed, and
// drops it in the next call, because the engine's threads do not take the GIL.
//
// After fork() the child's calls throw Error(kInvalid), and the child never destroys the group,
// whose connections belong to its parent.
//
// Thread safety: every method needs the GIL and may be called from any thread.

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/core/system/host.h"

namespace paceline::python {

// An operation under way, or a completed one.
class Operation {
 public:
  Operation(WorkPtr work, std::weak_ptr<ProcessGroup> group)
      : work_(std::move(work)), group_(std::move(group)) {}

  // Waits until the operation has ended, at most `timeout_ms` (0: until its own deadline), and
  // throws its error.
  void wait(std::int64_t timeout_ms);
  bool is_completed() const { return work_->is_completed(); }
  // The exception with which the operation ended; None if it has succeeded or has not ended.
  nanobind::object error() const;
  int source_rank() const { return work_->source_rank(); }
  // Calls `function` in a thread that serves next_completion(), once the operation has ended.
  void then(nanobind::object function);

 private:
  const WorkPtr work_;
  const std::weak_ptr<ProcessGroup> group_;
};

// The members of paceline::Call, as Python passes them.
struct CallArguments {
  int op = 0;
  int dtype = 0;
  std::uintptr_t input = 0;
  std::size_t input_count = 0;
  std::uintptr_t output = 0;
  std::size_t output_count = 0;
  int reduce_op = 0;
  int root = 0;
  std::int64_t timeout_ms = 0;  // 0: the group's
  std::vector<std::size_t> counts = {};
  std::vector<std::size_t> receive_counts = {};
  // Coalesced calls: addresses and counts of each buffer.
  std::vector<std::pair<std::uintptr_t, std::size_t>> inputs = {};
  std::vector<std::pair<std::uintptr_t, std::size_t>> outputs = {};
};

class Group {
 public:
  // Collective: meets the other members through `store`, any object with the methods of
  // torch.distributed's stores.
  Group(nanobind::object store, const std::string& name, const std::vector<int>& world_ranks,
        int rank, int world_size, std::int64_t timeout_ms, const std::string& transport);
  // Collective over the job: makes the world group from the launcher's variables, like
  // init_process_group().
  explicit Group(std::int64_t timeout_ms);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return open().rank(); }
  int size() const { return open().world_size(); }
  std::string name() const { return open().name(); }
  std::string transport() const { return open().transport(); }
  std::vector<int> world_ranks() const { return open().world_ranks(); }
  // The ranks of the group on this rank's host, in order.
  std::vector<int> neighbours() const { return open().hosts().neighbours(open().rank()); }
  std::string explain(int op, int dtype, std::size_t count) const;

  void run(const CallArguments& arguments);
  std::unique_ptr<Operation> start(const CallArguments& arguments, nanobind::object keep);
  std::unique_ptr<Operation> send(std::uintptr_t data, std::size_t count, int dtype, int peer,
                                  std::uint32_t tag, std::int64_t timeout_ms,
                                  nanobind::object keep);
  // `peer` is -1 for a message from any rank.
  std::unique_ptr<Operation> receive(std::uintptr_t data, std::size_t count, int dtype, int peer,
                                     std::uint32_t tag, std::int64_t timeout_ms,
                                     nanobind::object keep);

  void abort(const std::string& reason);
  // Leaves the group. The operations under way fail; the other ranks see a rank that has left.
  void close();
  bool is_closed() const { return group_ == nullptr; }

 private:
  ProcessGroup& open() const;
  std::unique_ptr<Operation> post(const Call& call, std::int64_t timeout_ms, nanobind::object keep);
  std::unique_ptr<Operation> watch(WorkPtr work, nanobind::object keep);
  void drop_completed();

  std::shared_ptr<ProcessGroup> group_;  // owners: this object, and a call under way
  const std::string name_;
  const OwnerProcess owner_;
  std::list<std::pair<WorkPtr, nanobind::object>> under_way_;
};

// Waits until an operation with a function (Operation::then()) completes, and returns the function;
// None after close_completions().
nanobind::object next_completion();
std::size_t num_waiting_for_completions();
void close_completions();

}  // namespace paceline::python
