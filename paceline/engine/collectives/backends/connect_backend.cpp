#include "paceline/engine/collectives/backends/connect_backend.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "paceline/engine/collectives/backends/backend_list.h"
#include "paceline/engine/collectives/backends/library_list.h"
#include "paceline/engine/collectives/op_traits.h"
#include "paceline/engine/collectives/selection/calibration.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/store/prefix_store.h"
#include "paceline/engine/store/store.h"

namespace paceline {

namespace {

// How much later the engine's lifeline may show a death than the library's connection does.
constexpr std::chrono::milliseconds kNoticeTime{500};
constexpr std::chrono::milliseconds kLookAgain{2};

}  // namespace

const char* LibraryBackend::transport() const {
  return libraries_.cpu ? libraries_.cpu->transport() : PacelineBackend::transport();
}

std::string LibraryBackend::explain(const PlanRequest& request) const {
  if (!libraries_.cpu) return PacelineBackend::explain(request);
  return std::string(name_of(request.op)) + ": backend " + name_ +
         " chooses the algorithm itself\n";
}

bool LibraryBackend::supports(Op op, Dtype dtype, ReduceOp reduce_op, Device device) const {
  const Library* library = library_of(device);
  if (library == nullptr) return PacelineBackend::supports(op, dtype, reduce_op, device);
  if (has_counts(op) && device == Device::kCpu) {
    return PacelineBackend::supports(op, dtype, reduce_op, device);
  }
  return library->supports(op, dtype, reduce_op);
}

void LibraryBackend::run(const Collective& call, const Fingerprint& fingerprint,
                         const WaitOptions& wait) {
  Library* library = library_of(call.device);
  const bool is_own = (has_counts(call.op) && call.device == Device::kCpu) || call.part_of;
  if (library == nullptr || is_own) return PacelineBackend::run(call, fingerprint, wait);
  library->require_usable(call);
  // This barrier of the engine returns only once every rank has made the call.
  PacelineBackend::run({}, fingerprint, wait);
  if (call.op == Op::kBarrier || call.op == Op::kAllocate || call.count == 0) return;
  try {
    library->run(call, fingerprint.sequence, wait.deadline);
    // A run that abort() has ended may look like a success.
    if (mesh().failed()) mesh().throw_if_failed();
  } catch (const Error& error) {
    throw fail_group(error);
  } catch (...) {  // for example, out of memory
    throw fail_group(Error(ErrorCode::kSystem, describe_current_exception()));
  }
}

// A library notices only that a connection broke, or just that something failed; the engine soon
// learns which rank died, or which rank gave up and why.
Error LibraryBackend::fail_group(const Error& error) {
  const auto until = Deadline::after(kNoticeTime);
  try {
    while (error.code() != ErrorCode::kTimeout && !until.expired()) {
      mesh().throw_if_failed();
      std::this_thread::sleep_for(kLookAgain);
    }
    mesh().throw_if_failed();
  } catch (const Error& cause) {
    abort(cause);
    return cause;
  }
  abort(error);
  return error;
}

// A library treats all memory alike, so none of it counts as symmetric.
bool LibraryBackend::is_symmetric(ConstBuffer buffer) {
  return library_of(buffer.device) == nullptr && PacelineBackend::is_symmetric(buffer);
}

void LibraryBackend::abort(const Error& cause) {
  PacelineBackend::abort(cause);
  for (Library* library : {libraries_.cpu.get(), libraries_.cuda.get()}) {
    if (library != nullptr) library->abort();
  }
}

namespace {

void require_available(const BackendChoice& choice) {
  for (const BackendInfo& info : list_backends()) {
    const bool chosen = info.name == choice.cpu || info.name == choice.cuda;
    if (chosen && !info.available) throw backend_missing(info);
  }
}

// Refuses encryption with a library, because the engine cannot encrypt a library's own connections.
void require_own_connections(const BackendChoice& choice, const BackendOptions& options) {
  if (!options.link.encrypt || choice == BackendChoice()) return;
  fail(ErrorCode::kUnsupported,
       "backend {} sends in the clear; with --encrypt (PACELINE_ENCRYPT=1) choose backend paceline",
       choice.text());
}

EngineOptions engine_options(const Rendezvous& rendezvous, const BackendOptions& options) {
  EngineOptions engine;
  engine.planning = options.planning;
  engine.generation = static_cast<std::uint32_t>(rendezvous.environment.restart_count);
  engine.group = options.group_hash;
  engine.symmetric = options.symmetric;
  if (!options.planning.costs && options.rank == 0) {
    try {
      const auto known = load_calibration(calibration_path());
      if (known) engine.planning.costs = std::make_shared<const CostModel>(*known);
    } catch (const Error& error) {
      log::warning(std::string(error.what()) + "; choosing algorithms by the defaults");
    }
  }
  return engine;
}

// The store's key of a member's address. The key contains the member's rank in the world, so ranks
// that name different members still find each other, and then detect the mistake.
std::string address_key(const BackendOptions& options, const std::string& prefix, int member) {
  return prefix + std::to_string(options.world_ranks[static_cast<std::size_t>(member)]);
}

std::unique_ptr<Mesh> meet_members(const Rendezvous& rendezvous, const BackendOptions& options,
                                   const std::string& prefix) {
  ConnectOptions connect;
  connect.name = options.group;
  connect.rank = options.rank;
  connect.world_size = static_cast<int>(options.world_ranks.size());
  connect.members = options.world_ranks;
  connect.generation = rendezvous.environment.restart_count;
  connect.address = rendezvous.address;
  connect.link = options.link;
  connect.timeout = options.timeout;
  connect.look_after_parent = options.look_after_parent;
  connect.publish = [&](const std::string& value) {
    rendezvous.store->set(address_key(options, prefix, options.rank), value);
  };
  connect.fetch = [&](const std::vector<int>& peers, std::chrono::milliseconds wait) {
    std::vector<std::string> keys;
    for (const int peer : peers) keys.push_back(address_key(options, prefix, peer));
    return rendezvous.store->multi_get(keys, wait);
  };
  const auto if_possible = [](auto&& body) {
    try {
      return body();
    } catch (const Error&) {  // the store itself may be lost
      return std::string();
    }
  };
  connect.give_up = [&](const std::string& notice) {
    if_possible([&] { return rendezvous.store->compare_set(prefix + "gave_up", "", notice); });
  };
  connect.given_up = [&](std::chrono::milliseconds wait) {
    return if_possible([&] { return rendezvous.store->get(prefix + "gave_up", wait); });
  };
  auto mesh = connect_mesh(connect, rendezvous.secret);
  mesh->join(options.failures);
  return mesh;
}

// Deletes this rank's address once every member has read it, so that groups do not fill the store.
void forget_address(const Rendezvous& rendezvous, const BackendOptions& options,
                    const std::string& prefix) {
  try {
    rendezvous.store->delete_key(address_key(options, prefix, options.rank));
  } catch (const Error&) {
    // The store may be lost, and the group no longer needs it.
  }
}

// Runs a step after the members are connected. An error of the mesh names the lost member; this
// function adds what this rank was doing.
template <class Body>
auto while_forming(const BackendOptions& options, Body&& body) {
  try {
    return body();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kPeerLost && error.code() != ErrorCode::kAborted) throw;
    throw error.reworded(
        fmt::format("{}; this rank was forming group {}", error.what(), options.group));
  }
}

// Runs a collective of the engine outside the group's numbering: the group's calls are numbered
// from 1; these calls all have number 0.
using RunUnnumbered = std::function<void(const Collective& call, Deadline deadline)>;

// Makes a RunUnnumbered, which is valid as long as the engine.
RunUnnumbered unnumbered_runner(PacelineBackend& engine, const Rendezvous& rendezvous,
                                const BackendOptions& options) {
  const auto generation = static_cast<std::uint32_t>(rendezvous.environment.restart_count);
  return
      [&engine, generation, group = options.group_hash](const Collective& call, Deadline deadline) {
        engine.run(call, make_fingerprint(call, 0, generation, group), {.deadline = deadline});
      };
}

bool agree(const RunUnnumbered& run, bool mine, Deadline deadline) {
  const std::uint8_t own = mine ? 1 : 0;
  std::uint8_t all = 0;
  Collective call;
  call.op = Op::kAllReduce;
  call.part_of = Op::kTakeTurns;
  call.reduce_op = ReduceOp::kMin;
  call.count = 1;
  call.input = reinterpret_cast<const std::byte*>(&own);
  call.output = reinterpret_cast<std::byte*>(&all);
  run(call, deadline);
  return all == 1;
}

// Every rank reaches the same verdict, because all ranks have the same statements.
void require_no_refusal(const std::vector<Statement>& all, const BackendOptions& options) {
  if (const auto refused = first_refusal(all)) {
    const bool is_own = static_cast<int>(*refused) == options.rank;
    fail(static_cast<ErrorCode>(all[*refused].code), "{}: forming group {} failed{}: {}",
         options.self(), options.group, is_own ? "" : " on " + options.name_of(*refused),
         all[*refused].text);
  }
}

void require_agreement(const std::vector<Statement>& all, const BackendOptions& options) {
  require_no_refusal(all, options);
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    check(std::strcmp(all[rank].text, all[0].text) == 0,
          "{}: the ranks of group {} chose different backends: {} {}, {} {}; give "
          "all of them the same --backend",
          options.self(), options.group, options.name_of(0), all[0].text, options.name_of(rank),
          all[rank].text);
  }
}

// Implements LibraryContext::tell_all.
std::vector<std::string> tell_all(const RunUnnumbered& run, const BackendOptions& options,
                                  const std::function<std::string()>& tell) {
  Statement mine;
  try {
    mine = Statement::accept(tell());
  } catch (const Error& error) {
    mine = Statement::refuse(error);
  }
  const auto all = statements_of_all(mine, options.world_ranks.size(), [&](const Collective& call) {
    run(call, Deadline::after(options.timeout));
  });
  require_no_refusal(all, options);
  std::vector<std::string> texts;
  for (const Statement& statement : all) texts.emplace_back(statement.text);
  return texts;
}

// Connects a library. Null if the engine carries out the calls itself, as in a group of one rank
// (except on CUDA memory, which the engine cannot read).
std::unique_ptr<Library> connect_library(const std::string& name, const LibraryContext& context) {
  for (const LibraryEntry& library : list_libraries()) {
    if (library.info.name != name) continue;
    const bool engine_serves = context.world_size() == 1 && library.info.device == Device::kCpu;
    return engine_serves ? nullptr : library.connect(context);
  }
  return nullptr;
}

LibraryBackend::Libraries connect_libraries(const BackendChoice& choice,
                                            const Rendezvous& rendezvous,
                                            const BackendOptions& options,
                                            const std::string& prefix, LibraryBackend& engine,
                                            const RunUnnumbered& run) {
  const LibraryContext context{
      .group = options.group,
      .rank = options.rank,
      .world_ranks = options.world_ranks,
      .environment = rendezvous.environment,
      .address = rendezvous.address,
      .store = std::make_shared<PrefixStore>(prefix + "library", rendezvous.store),
      .mesh = engine.mesh(),
      .deadline = Deadline::after(options.timeout),
      .agree = [run](bool mine, Deadline deadline) { return agree(run, mine, deadline); },
      .tell_all =
          [&](const std::function<std::string()>& tell) { return tell_all(run, options, tell); },
      .announce = [&engine](Op op, const PointToPointCall& call,
                            Deadline deadline) { return engine.announce(op, call, deadline); },
      .fail_group = [&engine](const Error& error) { return engine.fail_group(error); }};
  try {
    return {.cpu = connect_library(choice.cpu, context),
            .cuda = connect_library(choice.cuda, context)};
  } catch (const Error& error) {
    engine.abort(error);
    engine.mesh().throw_if_failed();  // another rank may have failed first
    throw;
  }
}

}  // namespace

std::unique_ptr<Backend> connect_backend(const Rendezvous& rendezvous,
                                         const BackendOptions& options) {
  const std::string prefix = fmt::format("group/{}.{}/{}/", rendezvous.environment.restart_count,
                                         rendezvous.round, options.group);
  BackendChoice choice;
  Statement mine;
  try {
    choice = parse_backend_choice(options.choice);
    require_available(choice);
    require_own_connections(choice, options);
    mine = Statement::accept(choice.text());
  } catch (const Error& error) {
    mine = Statement::refuse(error);
  }
  auto mesh = meet_members(rendezvous, options, prefix);
  return while_forming(options, [&] {
    auto backend = std::make_unique<LibraryBackend>(choice.text(), std::move(mesh),
                                                    engine_options(rendezvous, options),
                                                    Deadline::after(options.timeout));
    const auto run = unnumbered_runner(*backend, rendezvous, options);
    const auto run_now = [&](const Collective& call) {
      run(call, Deadline::after(options.timeout));
    };
    const auto all = statements_of_all(mine, options.world_ranks.size(), run_now);
    forget_address(rendezvous, options, prefix);
    require_agreement(all, options);
    if (choice == BackendChoice()) return backend;
    backend->use(connect_libraries(choice, rendezvous, options, prefix, *backend, run));
    // Without this barrier, Gloo would end a process if a peer closed a connection that the process
    // has not accepted yet.
    run_now({});
    return backend;
  });
}

}  // namespace paceline
