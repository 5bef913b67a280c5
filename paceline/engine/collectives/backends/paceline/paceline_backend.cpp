#include "paceline/engine/collectives/backends/paceline/paceline_backend.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <type_traits>
#include <vector>

#include "paceline/engine/collectives/backends/paceline/message_executor.h"
#include "paceline/engine/collectives/op_traits.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/core/system/resource_limits.h"
#include "paceline/engine/transport/shared_memory.h"

namespace paceline {

namespace {

// The facts that the ranks exchange when a group forms.
struct Terms {
  std::array<double, 10> costs{};
  std::array<char, 64> origin{};
  std::int16_t algorithm = -1;
  bool allows_any_order = false;
  bool shares_memory = false;
};
static_assert(std::is_trivially_copyable_v<Terms>);

Terms terms_of(const PlanningOptions& options) {
  const CostModel costs = options.costs ? *options.costs : CostModel();
  Terms terms;
  terms.costs = {costs.network.latency_s,
                 costs.network.message_s,
                 costs.network.bytes_per_s,
                 costs.sockets.latency_s,
                 costs.sockets.message_s,
                 costs.sockets.bytes_per_s,
                 costs.reduce_bytes_per_s,
                 costs.copy_bytes_per_s,
                 costs.meet_s,
                 costs.spread};
  costs.origin.copy(terms.origin.data(), terms.origin.size() - 1);
  if (options.algorithm) terms.algorithm = static_cast<std::int16_t>(*options.algorithm);
  terms.allows_any_order = options.allows_any_order;
  return terms;
}

bool same_choices(const Terms& a, const Terms& b) {
  return a.algorithm == b.algorithm && a.allows_any_order == b.allows_any_order;
}

// "algorithm ring, allows_any_order true".
std::string choices_text(const Terms& terms) {
  return fmt::format(
      "algorithm {}, allows_any_order {}",
      terms.algorithm < 0 ? "by the planner" : name_of(static_cast<Algorithm>(terms.algorithm)),
      terms.allows_any_order);
}

CostModel costs_of(const Terms& terms) {
  const auto& number = terms.costs;
  CostModel costs;
  costs.network = {number[0], number[1], number[2]};
  costs.sockets = {number[3], number[4], number[5]};
  costs.reduce_bytes_per_s = number[6];
  costs.copy_bytes_per_s = number[7];
  costs.meet_s = number[8];
  costs.spread = number[9];
  costs.origin = terms.origin.data();
  return costs;
}

Hosts hosts_of(const Mesh& mesh) {
  std::map<std::string, int> numbers;
  std::vector<int> host_of;
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    const auto number = static_cast<int>(numbers.size());
    host_of.push_back(numbers.try_emplace(mesh.peer(rank).host, number).first->second);
  }
  return Hosts::from(host_of);
}

// Gathers the terms of all ranks with the simplest algorithm, because the ranks have not agreed on
// any other yet; the sequence number is 0.
std::vector<Terms> terms_of_all(Mesh& mesh, Exchange& exchange, const Terms& mine,
                                const EngineOptions& options, Deadline deadline) {
  const Planner direct(hosts_of(mesh), {.algorithm = Algorithm::kDirect});
  std::vector<Terms> all(static_cast<std::size_t>(mesh.world_size()));
  const Collective call =
      all_gather_of(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  MessageExecutor(mesh, exchange, direct, nullptr)
      .run(call, make_fingerprint(call, 0, options.generation, options.group), {deadline, true});
  return all;
}

}  // namespace

Collective all_gather_of(std::span<const std::byte> mine, std::span<std::byte> all) {
  Collective call;
  call.op = Op::kAllGather;
  call.count = mine.size();
  call.input = mine.data();
  call.output = all.data();
  return call;
}

Statement Statement::accept(std::string_view text) {
  Statement statement;
  text.copy(statement.text, sizeof statement.text - 1);
  return statement;
}

Statement Statement::refuse(const Error& error) {
  Statement statement = accept(error.what());
  statement.is_accepted = false;
  statement.code = static_cast<std::uint8_t>(error.code());
  return statement;
}

std::vector<Statement> statements_of_all(const Statement& mine, std::size_t world_size,
                                         const std::function<void(const Collective& call)>& run) {
  std::vector<Statement> all(world_size, mine);
  if (world_size > 1) {
    run(all_gather_of(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all))));
  }
  for (Statement& theirs : all) theirs.text[sizeof theirs.text - 1] = '\0';
  return all;
}

std::optional<std::size_t> first_refusal(std::span<const Statement> all) {
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].is_accepted) return rank;
  }
  return {};
}

// Makes all ranks choose by the same numbers, and allows the hierarchy only if the ranks of every
// host share memory.
Planner agree_on_planner(Mesh& mesh, Exchange& exchange, bool shares_memory,
                         const EngineOptions& options, Deadline deadline) {
  const Hosts hosts = hosts_of(mesh);
  PlanningOptions planning = options.planning;
  if (mesh.world_size() == 1) return Planner(hosts, planning);
  Terms mine = terms_of(planning);
  mine.shares_memory = mesh.neighbours().size() == 1 || shares_memory;
  std::vector<Terms> all = terms_of_all(mesh, exchange, mine, options, deadline);
  check(same_choices(mine, all[0]),
        "{}: the options of group {} that choose algorithms (algorithm, allows_any_order) "
        "differ from those of rank 0: {} here, {} there",
        mesh.self(), mesh.name(), choices_text(mine), choices_text(all[0]));
  bool all_share = hosts.size() > 1 && hosts.size() < all.size();
  for (const Terms& theirs : all) all_share &= theirs.shares_memory;
  all[0].origin.back() = '\0';
  planning.costs = std::make_shared<const CostModel>(costs_of(all[0]));
  return Planner(hosts, planning, all_share);
}

namespace {

// Aborts the group with the exception being handled, which is sent to all ranks, and rethrows it.
[[noreturn]] void rethrow_aborting(const Mesh& mesh,
                                   const std::function<void(const Error& cause)>& abort) {
  try {
    throw;
  } catch (const Error& error) {
    abort(error);
    throw;
  } catch (...) {  // for example, out of memory: the other ranks must not wait for this one
    const Error cause(ErrorCode::kSystem,
                      fmt::format("{}: a collective of group {} failed: {}", mesh.self(),
                                  mesh.name(), describe_current_exception()));
    abort(cause);
    throw cause;
  }
}

bool is_one_host(const Mesh& mesh) {
  return mesh.neighbours().size() == static_cast<std::size_t>(mesh.world_size());
}

// Allocates a host's share. Null if a rank of the host got no memory: every rank of the host
// learns of it (SharedMemory::allocate), so all of them continue without shared memory.
template <class Share>
std::unique_ptr<Share> try_to_share(Mesh& mesh, bool is_wanted, Deadline deadline) {
  if (!is_wanted || mesh.shared_memory() == nullptr || mesh.world_size() == 1) return nullptr;
  try {
    return std::make_unique<Share>(mesh, deadline);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kSystem) {
      mesh.abort(error);
      throw;
    }
    if (mesh.rank() == mesh.neighbours().front()) {
      log::warning(std::string(error.what()) + "; continuing over sockets, which is slower");
    }
    return nullptr;
  }
}

Planner agree_or_abort(Mesh& mesh, Exchange& exchange, bool shares_memory,
                       const EngineOptions& options, Deadline deadline) {
  try {
    return agree_on_planner(mesh, exchange, shares_memory, options, deadline);
  } catch (...) {
    rethrow_aborting(mesh, [&](const Error& cause) { mesh.abort(cause); });
  }
}

}  // namespace

PacelineBackend::PacelineBackend(std::unique_ptr<Mesh> mesh, const EngineOptions& options,
                                 Deadline deadline)
    : mesh_(std::move(mesh)),
      generation_(options.generation),
      group_(options.group),
      exchange_(*mesh_),
      group_share_(try_to_share<GroupShare>(*mesh_, is_one_host(*mesh_), deadline)),
      host_share_(try_to_share<HostShare>(*mesh_, !is_one_host(*mesh_), deadline)),
      planner_(agree_or_abort(*mesh_, exchange_, group_share_ || host_share_, options, deadline)),
      point_to_point_(
          std::make_shared<PointToPoint>(*mesh_, group_share_  ? group_share_->ring_memory()
                                                 : host_share_ ? host_share_->ring_memory()
                                                               : RingMemory())) {
  if (group_share_) {
    shared_.emplace(*mesh_, *group_share_, options.symmetric);
  } else {
    messages_.emplace(*mesh_, exchange_, planner_, host_share_.get());
  }
}

template <class Operation>
void PacelineBackend::guarded(Operation&& operation) {
  if (mesh_->failed()) mesh_->throw_if_failed();
  try {
    operation();
  } catch (...) {
    // Calls the engine's own abort(): no library of a LibraryBackend has begun the operation that
    // failed.
    rethrow_aborting(*mesh_, [this](const Error& cause) { PacelineBackend::abort(cause); });
  }
}

void PacelineBackend::execute(const Collective& call, const Fingerprint& fingerprint,
                              const WaitOptions& wait) {
  if (shared_) {
    shared_->run(call, fingerprint, wait);
  } else {
    messages_->run(call, fingerprint, wait);
  }
}

void PacelineBackend::tell_all(std::span<const std::byte> mine, std::span<std::byte> all,
                               Deadline deadline) {
  const Collective call = all_gather_of(mine, all);
  execute(call, make_fingerprint(call, 0, generation_, group_), {deadline, true});
}

// Checks for room before the first page is allocated: if the machine or cgroup lacks memory, the
// kernel does not refuse pages but kills a process. All ranks have checked before any of them
// continues.
void PacelineBackend::require_room(std::size_t bytes, Deadline deadline) {
  struct Seen {
    std::uint64_t needed = 0;
    std::uint64_t room = 0;
    std::array<char, 240> source{};
  };
  static_assert(std::is_trivially_copyable_v<Seen>);
  Seen mine;
  const auto room = memory_room();
  mine.room = room ? room->bytes : UINT64_MAX;
  if (room) room->source.copy(mine.source.data(), mine.source.size() - 1);
  if (__builtin_mul_overflow(bytes, mesh_->neighbours().size(), &mine.needed)) {
    mine.needed = UINT64_MAX;
    mine.room = std::min(mine.room, UINT64_MAX - 1);
  }
  std::vector<Seen> all(static_cast<std::size_t>(mesh_->world_size()), mine);
  if (all.size() > 1) {
    guarded([&] {
      tell_all(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)),
               deadline);
    });
  }
  for (int rank = 0; rank < mesh_->world_size(); ++rank) {
    Seen& theirs = all[static_cast<std::size_t>(rank)];
    theirs.source.back() = '\0';
    if (theirs.needed <= theirs.room) continue;
    fail(ErrorCode::kSystem,
         "{}: allocate_symmetric: {} bytes for each rank need {} on the host of {}, where {} are "
         "left {}; allocate less, or start fewer ranks on that host",
         mesh_->self(), bytes, theirs.needed, mesh_->describe(rank), theirs.room,
         theirs.source.data());
  }
}

const char* PacelineBackend::transport() const {
  if (mesh_->world_size() == 1) return "none";
  if (shared_) return mesh_->shared_memory()->name();
  const bool is_ucx = mesh_->wire().name() == std::string_view("ucx");
  if (host_share_) return is_ucx ? "shm+ucx" : "shm+tcp";
  return mesh_->wire().name();
}

std::string PacelineBackend::explain(const PlanRequest& request) const {
  return shared_ ? shared_->explain(request) : planner_.explain(request);
}

bool PacelineBackend::supports(Op op, Dtype dtype, ReduceOp reduce_op, Device device) const {
  return device == Device::kCpu && (!reduces(op) || is_defined(reduce_op, dtype));
}

void PacelineBackend::run(const Collective& call, const Fingerprint& fingerprint,
                          const WaitOptions& wait) {
  guarded([&] { execute(call, fingerprint, wait); });
}

WorkPtr PacelineBackend::send(const PointToPointCall& call, Deadline deadline) {
  return point_to_point_->send(call, deadline);
}

WorkPtr PacelineBackend::receive(const PointToPointCall& call, Deadline deadline) {
  return point_to_point_->receive(call, deadline);
}

SymmetricBuffer PacelineBackend::allocate_symmetric(std::size_t bytes, Pages pages,
                                                    const Fingerprint& fingerprint,
                                                    const WaitOptions& wait) {
  constexpr std::size_t kMinBytesToAsk = 64 << 20;  // asking costs the time of a small all_gather
  std::vector<std::byte*> blocks(static_cast<std::size_t>(mesh_->world_size()));
  if (bytes >= kMinBytesToAsk && pages != Pages::kOnTouch) require_room(bytes, wait.deadline);
  if (shared_) {
    try {
      const auto shared = shared_->allocate(bytes, pages, wait.deadline);
      for (int rank = 0; rank < mesh_->world_size(); ++rank)
        blocks[static_cast<std::size_t>(rank)] = shared->of(rank);
      return {std::move(blocks), mesh_->rank(), bytes, shared, mesh_->failure_flag()};
    } catch (const Error& error) {
      // Every rank already knows of the allocation failure, and the group continues.
      if (error.code() != ErrorCode::kSystem) PacelineBackend::abort(error);
      throw;
    }
  }
  auto mapping = std::make_shared<Mapping>();
  std::optional<Error> problem;
  try {
    *mapping = Mapping::anonymous(bytes, pages);
  } catch (const Error& error) {
    problem = error;
  }
  require_no_problem(problem, fingerprint, wait);
  blocks[static_cast<std::size_t>(mesh_->rank())] = mapping->data();
  return {std::move(blocks), mesh_->rank(), bytes, mapping, mesh_->failure_flag()};
}

// Every rank learns the results of all ranks, and reaches the same verdict.
void PacelineBackend::require_no_problem(const std::optional<Error>& own,
                                         const Fingerprint& fingerprint, const WaitOptions& wait) {
  const auto all = statements_of_all(
      own ? Statement::refuse(*own) : Statement(), static_cast<std::size_t>(mesh_->world_size()),
      [&](const Collective& call) { guarded([&] { execute(call, fingerprint, wait); }); });
  const auto refused = first_refusal(all);
  if (!refused) return;
  const int rank = static_cast<int>(*refused);
  fail(ErrorCode::kSystem, {.ranks = {mesh_->in_world(rank)}},
       "{}: {} could not get its part of the memory: {}; free memory on its host", mesh_->self(),
       mesh_->describe(rank), all[*refused].text);
}

// Unless all ranks share memory, all memory counts as symmetric, because symmetric memory would
// save no copy.
bool PacelineBackend::is_symmetric(ConstBuffer buffer) {
  return !shared_ || shared_->is_symmetric(buffer.data, buffer.bytes());
}

void PacelineBackend::abort(const Error& cause) {
  mesh_->abort(cause);
  point_to_point_->wake();
}

}  // namespace paceline
