#include "python/core/group.h"

#include <chrono>

#include "paceline/engine/collectives/group/engine_group.h"
#include "paceline/engine/collectives/group/init_process_group.h"
#include "paceline/engine/collectives/group/world_setup.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/dtype_traits.h"
#include "paceline/engine/transport/wire.h"

#include "python/core/completions.h"
#include "python/core/interrupts.h"
#include "python/core/python_error.h"
#include "python/core/python_store.h"

namespace paceline::python {

namespace nb = nanobind;

namespace {

constexpr const char* kInterrupted = "the user interrupted this rank (Ctrl-C)";

// Never destroyed, because the engine's threads may use it while the process ends.
Completions& completions() {
  static auto& all = *new Completions;
  return all;
}

// The groups of this process notify each other's peers of a failure. Never destroyed, for the same
// reason as completions().
const std::shared_ptr<FailureDomain>& failures() {
  static const auto& domain = *new std::shared_ptr<FailureDomain>(make_failure_domain());
  return domain;
}

CallOptions options_of(std::int64_t timeout_ms) {
  CallOptions options;
  if (timeout_ms > 0) options.timeout = std::chrono::milliseconds(timeout_ms);
  return options;
}

Op op_of(int number) {
  check(number >= 0 && number <= static_cast<int>(Op::kVisit), "{} is not an operation", number);
  return static_cast<Op>(number);
}

Dtype dtype_of(int number) {
  check(number >= 0 && static_cast<std::size_t>(number) < kAllDtypes.size(),
        "{} is not an element type", number);
  return static_cast<Dtype>(number);
}

ReduceOp reduce_op_of(int number) {
  check(number >= 0 && number <= static_cast<int>(ReduceOp::kBitXor), "{} is not a reduction",
        number);
  return static_cast<ReduceOp>(number);
}

void* address(std::uintptr_t number) {
  return reinterpret_cast<void*>(number);  // NOLINT: Python gives addresses as numbers
}

// A Call, and the lists to which it points.
class OwnedCall {
 public:
  explicit OwnedCall(const CallArguments& given) {
    const Dtype dtype = dtype_of(given.dtype);
    call_.op = op_of(given.op);
    call_.input = ConstBuffer(address(given.input), given.input_count, dtype);
    call_.output = Buffer(address(given.output), given.output_count, dtype);
    call_.reduce_op = reduce_op_of(given.reduce_op);
    call_.root = given.root;
    call_.counts = given.counts;
    call_.receive_counts = given.receive_counts;
    if (given.inputs.empty() && given.outputs.empty()) return;
    for (const auto& [data, count] : given.inputs)
      inputs_.emplace_back(address(data), count, dtype);
    for (const auto& [data, count] : given.outputs) {
      outputs_.emplace_back(address(data), count, dtype);
    }
    call_.lists = BufferLists{inputs_, outputs_};
  }
  OwnedCall(const OwnedCall&) = delete;
  OwnedCall& operator=(const OwnedCall&) = delete;

  const Call& operator*() const { return call_; }

 private:
  Call call_;
  std::vector<ConstBuffer> inputs_;
  std::vector<Buffer> outputs_;
};

}  // namespace

nb::object next_completion() { return completions().next(); }
std::size_t num_waiting_for_completions() { return completions().num_waiting(); }
void close_completions() { completions().close(); }

// ---- operations

void Operation::wait(std::int64_t timeout_ms) {
  without_gil(
      [&] {
        if (timeout_ms > 0) return work_->wait(std::chrono::milliseconds(timeout_ms));
        work_->wait();
      },
      [&] {
        if (const auto group = group_.lock()) group->abort(kInterrupted);
      });
}

nb::object Operation::error() const {
  std::optional<Error> ended;
  if (work_->is_completed()) {
    // The function is called at once, because the operation has completed.
    work_->on_complete([&](const Error* error) {
      if (error != nullptr) ended = *error;
    });
  }
  return ended ? to_python(*ended) : nb::none();
}

void Operation::then(nb::object function) { completions().watch(*work_, std::move(function)); }

// ---- groups

Group::Group(nb::object store, const std::string& name, const std::vector<int>& world_ranks,
             int rank, int world_size, std::int64_t timeout_ms, const std::string& transport)
    : name_(name) {
  PartOfWorld part{.name = name,
                   .world_ranks = world_ranks,
                   .rank = rank,
                   .world_size = world_size,
                   .store = std::make_shared<PythonStore>(std::move(store)),
                   .failures = failures()};
  if (timeout_ms > 0) part.group.timeout = std::chrono::milliseconds(timeout_ms);
  if (!transport.empty()) part.group.link.transport = parse_transport(transport);
  without_gil([&] { group_ = init_part_of_world(part); }, [] {});
}

Group::Group(std::int64_t timeout_ms) : name_("world") {
  InitOptions options;
  if (timeout_ms > 0) {
    options.group.timeout = options.rendezvous.timeout = std::chrono::milliseconds(timeout_ms);
  }
  without_gil([&] { group_ = init_process_group(options); }, [] {});
}

Group::~Group() { close(); }

ProcessGroup& Group::open() const {
  check(group_ != nullptr, "group {} has been shut down in this process; make a new group", name_);
  return *group_;
}

std::string Group::explain(int op, int dtype, std::size_t count) const {
  return open().explain(op_of(op), dtype_of(dtype), count);
}

void Group::run(const CallArguments& arguments) {
  open();
  if (!under_way_.empty()) drop_completed();
  const OwnedCall call(arguments);
  const auto group = group_;  // another thread may close this group during the call
  without_gil([&] { engine(*group).run(*call, options_of(arguments.timeout_ms)); },
              [&] { group->abort(kInterrupted); });
}

std::unique_ptr<Operation> Group::start(const CallArguments& arguments, nb::object keep) {
  return post(*OwnedCall(arguments), arguments.timeout_ms, std::move(keep));
}

std::unique_ptr<Operation> Group::send(std::uintptr_t data, std::size_t count, int dtype, int peer,
                                       std::uint32_t tag, std::int64_t timeout_ms,
                                       nb::object keep) {
  Call call;
  call.op = Op::kSend;
  call.input = ConstBuffer(address(data), count, dtype_of(dtype));
  call.peer = peer;
  call.tag = tag;
  return post(call, timeout_ms, std::move(keep));
}

std::unique_ptr<Operation> Group::receive(std::uintptr_t data, std::size_t count, int dtype,
                                          int peer, std::uint32_t tag, std::int64_t timeout_ms,
                                          nb::object keep) {
  Call call;
  call.op = Op::kReceive;
  call.output = Buffer(address(data), count, dtype_of(dtype));
  call.peer = peer;
  call.tag = tag;
  return post(call, timeout_ms, std::move(keep));
}

std::unique_ptr<Operation> Group::post(const Call& call, std::int64_t timeout_ms, nb::object keep) {
  open();
  drop_completed();
  const auto group = group_;
  WorkPtr work;
  {
    const nb::gil_scoped_release release;
    work = engine(*group).start(call, options_of(timeout_ms));
  }
  return watch(std::move(work), std::move(keep));
}

std::unique_ptr<Operation> Group::watch(WorkPtr work, nb::object keep) {
  auto operation = std::make_unique<Operation>(work, group_);
  under_way_.emplace_back(std::move(work), std::move(keep));
  return operation;
}

// Drops the memory of completed operations. Code that a dropped object runs, for example a
// destructor in Python, may call this group again, so the list is changed first.
void Group::drop_completed() {
  std::list<std::pair<WorkPtr, nb::object>> completed;
  for (auto next = under_way_.begin(); next != under_way_.end();) {
    const auto here = next++;
    if (here->first->is_completed()) completed.splice(completed.end(), under_way_, here);
  }
}

void Group::abort(const std::string& reason) {
  open();
  const auto group = group_;
  const nb::gil_scoped_release release;
  group->abort(reason);
}

void Group::close() {
  auto group = std::move(group_);
  group_ = nullptr;
  if (group == nullptr) return;
  if (!owner_.is_this()) {
    // A child of fork() leaks the group: its connections and its store's client are the parent's.
    new std::shared_ptr<ProcessGroup>(std::move(group));
    return;
  }
  {
    const nb::gil_scoped_release release;
    group.reset();
  }
  drop_completed();
}

}  // namespace paceline::python
