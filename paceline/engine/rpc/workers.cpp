#include "paceline/engine/rpc/workers.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <future>
#include <map>
#include <mutex>
#include <thread>

#include <unistd.h>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/core/system/host.h"
#include "paceline/engine/core/system/socket.h"
#include "paceline/engine/rendezvous/launch_environment.h"
#include "paceline/engine/rendezvous/meeting_point.h"
#include "paceline/engine/rpc/pool.h"
#include "paceline/engine/rpc/references.h"
#include "paceline/engine/rpc/server/server.h"
#include "paceline/engine/store/prefix_store.h"
#include "paceline/engine/store/store.h"
#include "paceline/engine/store/tcp_store.h"

namespace paceline::rpc {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::nanoseconds kLookAround = 1s;  // between two looks at the other workers
constexpr std::size_t kMaxName = 128;

void check_name(const std::string& name) {
  check(!name.empty() && name.size() <= kMaxName,
        "join: a worker's name must have 1 to {} characters, not {}", kMaxName, name.size());
  const bool has_control = std::any_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) < ' ' || c == '\x7f';
  });
  check(!has_control, "join: a worker's name must not have control characters");
}

// Fills in the launcher's store and secret.
void find_job(const std::string& name, JoinOptions& options) {
  if (options.store && options.secret) return;
  const auto variable = process_environment();
  if (!options.secret) options.secret = find_job_secret(variable);
  if (!options.store && options.secret) {
    const auto environment = detect_launch_environment(variable);
    const auto point = find_meeting_point("env://", environment, variable);
    if (point.kind == MeetingPoint::Kind::kLauncher) {
      auto store = std::make_shared<TcpStore>(point.endpoint, *options.secret);
      if (options.address.empty() && !is_loopback(store->local_address())) {
        options.address = store->local_address();
      }
      options.store =
          std::make_shared<PrefixStore>(fmt::format("{}/", environment.restart_count), store);
    }
  }
  check(options.store != nullptr && options.secret.has_value(),
        "join: worker {} needs its job's store and secret: start it with `paceline run`, or pass "
        "JoinOptions::store and secret",
        name);
}

// The timeline of this rank, shared with its groups.
std::shared_ptr<Timeline> timeline_of_rank() {
  const auto variable = process_environment();
  if (!variable("PACELINE_TIMELINE_DIR")) return nullptr;
  const auto environment = detect_launch_environment(variable);
  return open_timeline(environment.rank, environment.world_size, environment.restart_count,
                       variable);
}

constexpr const char* kUsualRole = "worker";

std::string role_of(const JoinOptions& options, const LaunchEnvironment& environment) {
  if (!options.role.empty()) return options.role;
  return environment.role.empty() ? kUsualRole : environment.role;
}

WorkerEntry describe(const std::string& name, const JoinOptions& options) {
  WorkerEntry self{.name = name, .role = options.role, .incarnation = random_hex(16)};
  self.host = host_token();
  self.part = options.host;
  self.pid_namespace = pid_namespace();
  self.pid = ::getpid();
  if (const auto status = process_status(self.pid)) self.start_ticks = status->start_ticks;
  self.unix_name = "paceline-" + random_hex(16);
  self.tcp_host =
      options.address.empty() ? choose_address("", interface_addresses(), false) : options.address;
  self.max_message = options.max_message;
  self.encrypts = options.encrypt || process_environment()("PACELINE_ENCRYPT") == "1";
  return self;
}

}  // namespace

struct Workers::Impl : std::enable_shared_from_this<Impl> {
  Impl(SetupPointer given, const JoinOptions& options)
      : setup(std::move(given)),
        deadline(options.deadline),
        leave_timeout(options.leave_timeout),
        num_threads(options.num_threads),
        max_threads(options.max_threads) {}

  void start() {
    pool = std::make_shared<Pool>(num_threads, max_threads, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->look();
    });
    server = std::make_shared<Server>(setup, pool);
    references = std::make_shared<ReferenceTable>(
        setup->self.name, setup->lease, [weak = weak_from_this()](const std::string& owner) {
          const auto self = weak.lock();
          check(self != nullptr, "a call to worker {} after this worker has left", owner);
          return self->caller_of(owner);
        });
    server->set_references(references);
    pool->start();
  }

  std::shared_ptr<Caller> caller_of(const std::string& worker) {
    check(owner.is_this(),
          "{}: a call to {} in a child that this worker's process ({}) forked; the child must call "
          "join() itself",
          setup->self.name, worker, owner.pid());
    check(is_present, "{}: a call to {} after leave()", setup->self.name, worker);
    const std::lock_guard lock(callers_mutex);
    auto& caller = callers[worker];
    if (!caller) {
      caller = std::make_shared<Caller>(
          setup, pool, worker,
          [worker, table = std::weak_ptr(references)](const std::string& incarnation) {
            if (const auto there = table.lock()) there->lose({worker, incarnation});
          });
    }
    return caller;
  }
  std::vector<std::shared_ptr<Caller>> all_callers() {
    const std::lock_guard lock(callers_mutex);
    std::vector<std::shared_ptr<Caller>> all;
    for (const auto& [name, caller] : callers) all.push_back(caller);
    return all;
  }

  Deadline until(const CallOptions& options) const {
    return Deadline::after(options.deadline.value_or(deadline));
  }
  // The incarnation of the worker on which an object is about to be made. Waits for a worker that
  // has not joined yet.
  std::string incarnation_of(const Caller& callee, Deadline until) const {
    std::string incarnation = callee.incarnation();
    if (!incarnation.empty() && !callee.is_callee_gone()) return incarnation;
    const Pool::Blocked blocked;
    Directory& directory = *setup->directory;
    auto entry = directory.find(callee.name());
    for (; !entry && !until.expired(); entry = directory.find(callee.name())) {
      std::this_thread::sleep_for(
          std::min<std::chrono::nanoseconds>(kLookUpPause, until.remaining()));
    }
    check(entry && entry->state == WorkerInfo::State::kPresent, "{}: create: {}", setup->self.name,
          entry ? fmt::format("worker {} has left or is lost", callee.name())
                : directory.unknown_worker_text(callee.name()));
    return entry->incarnation;
  }

  // Housekeeping on any thread of the pool: deadlines, leases, and from time to time the other
  // workers.
  void look() {
    if (!is_present) return;
    for (const auto& caller : all_callers()) caller->look();
    references->look();
    server->look();
    publish_open_calls();
    const auto now = std::chrono::steady_clock::now();
    // A worker that looks less often than twice per lease could never tell that another one is
    // silent.
    const auto pause = std::min(kLookAround, setup->lease / 4);
    if (now - looked_around < pause || looks_around.exchange(true)) return;
    looked_around = now;
    pool->run([self = shared_from_this()] {
      self->look_around();
      self->looks_around = false;
    });
  }
  void publish_open_calls() {
    CallGauge* const gauge = setup->stats.gauge();
    if (gauge == nullptr) return;
    std::vector<OpenCall> calls, handlers;
    for (const auto& caller : all_callers()) caller->collect_open(calls);
    server->collect_open(handlers);
    gauge->publish(setup->self.name, calls, handlers, references->num_objects(),
                   server->num_objects());
  }
  void look_around() {
    std::vector<WorkerEntry> changed;
    try {
      const Pool::Blocked blocked;
      changed = setup->directory->look_around(setup->self, boot_time());
    } catch (const std::exception& error) {
      log::debug(setup->self.name + ": looking for other workers: " + error.what());
    }
    const std::lock_guard lock(watching);
    for (const auto& entry : changed) known[entry.name] = entry.info();
    looked.notify_all();
    if (!watcher) return;
    for (const auto& [name, info] : known) {
      const auto found = reported.find(name);
      if (found != reported.end() && found->second == info) continue;
      reported[name] = info;
      to_report.push_back(info);
    }
    const auto seen = watcher;  // a copy, because it may call watch() again
    report(seen);
  }
  void report(const std::function<void(const WorkerInfo&)>& seen) {
    is_reporting = true;
    for (const auto& info : std::exchange(to_report, {})) {
      try {
        seen(info);
      } catch (...) {
        log::warning(setup->self.name + ": watch: " + describe_current_exception());
      }
    }
    is_reporting = false;
  }

  void leave() {
    if (!owner.is_this() || !is_present.exchange(false)) return;
    const auto until = Deadline::after(leave_timeout);
    // The store may be slow, so a thread of the pool informs it. This thread waits for that thread
    // at most until the deadline of leave().
    const auto said = std::make_shared<std::promise<void>>();
    pool->run([self = shared_from_this(), said] {
      const Pool::Blocked blocked;
      try {
        self->setup->directory->change(self->setup->self, WorkerInfo::State::kLeft);
      } catch (const std::exception& error) {
        log::debug(self->setup->self.name + ": leaving: " + error.what());
      }
      said->set_value();
    });
    server->begin_to_leave();
    for (const auto& caller : all_callers()) caller->close();
    const Pool::Blocked blocked;
    if (!server->wait_for_handlers(until)) {
      log::warning(fmt::format("{}: leave: handlers still run after {} ms: {}", setup->self.name,
                               leave_timeout.count(), fmt::join(server->running_methods(), ", ")));
    }
    said->get_future().wait_until(until.moment());
    server->close();
    pool->stop(until);
    server->forget_waiting();
    if (CallGauge* const gauge = setup->stats.gauge()) gauge->forget(setup->self.name);
  }

  const SetupPointer setup;
  const std::chrono::milliseconds deadline, leave_timeout;
  const int num_threads, max_threads;
  const OwnerProcess owner;
  std::atomic<bool> is_present{false}, looks_around{false};
  std::chrono::steady_clock::time_point
      looked_around{};  // used by the thread that does the housekeeping

  std::shared_ptr<Pool> pool;
  std::shared_ptr<Server> server;
  std::shared_ptr<ReferenceTable> references;

  std::mutex callers_mutex;  // guards callers
  std::map<std::string, std::shared_ptr<Caller>> callers;

  std::recursive_mutex watching;  // guards the members below; recursive: a watcher may call watch()
  std::condition_variable_any looked;  // look_around() has updated `known`
  std::function<void(const WorkerInfo&)> watcher;
  std::map<std::string, WorkerInfo> known, reported;
  std::vector<WorkerInfo> to_report;
  bool is_reporting = false;  // the thread that holds `watching` is calling the watcher
};

Workers::Workers(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

Workers::~Workers() {
  if (!impl_->owner.is_this()) {
    // This is a forked child, in which the threads do not exist. The child leaks the state that
    // they may have been using. A lack of memory ends the child.
    // NOLINTNEXTLINE(bugprone-unhandled-exception-at-new)
    [[maybe_unused]] const auto* const for_ever = new std::shared_ptr<Impl>(std::move(impl_));
    return;
  }
  try {
    leave();
  } catch (const std::exception& error) {
    log::warning(name() + ": leaving: " + error.what());
  }
}

const std::string& Workers::name() const { return impl_->setup->self.name; }
const std::shared_ptr<Store>& Workers::store() const { return impl_->setup->directory->store(); }
void Workers::serve(std::vector<detail::Method> methods) {
  impl_->server->serve(std::move(methods));
}
std::chrono::milliseconds Workers::default_deadline() const { return impl_->deadline; }
void Workers::leave() { impl_->leave(); }

detail::FutureReply Workers::begin(const std::string& worker, const detail::CallTarget& target,
                                   detail::RequestMaker request, const CallOptions& options) const {
  auto caller = impl_->caller_of(worker);
  auto call = begin_call(*caller, *impl_->references, target, request, impl_->until(options));
  return {std::move(caller), std::move(call), impl_->references};
}

void Workers::send(const std::string& worker, const detail::CallTarget& target,
                   detail::RequestMaker request) const {
  tell_call(*impl_->caller_of(worker), *impl_->references, target, request, impl_->until({}));
}

detail::HandlePointer Workers::begin_create(const std::string& worker, detail::CallTarget target,
                                            detail::RequestMaker arguments,
                                            const CallOptions& options) const {
  const Deadline deadline = impl_->until(options);
  const auto caller = impl_->caller_of(worker);
  auto reference = impl_->references->created(
      {worker, impl_->incarnation_of(*caller, deadline), new_object_number()});
  target.object = reference->id.number;
  reference->creation = begin_call(*caller, *impl_->references, target, arguments, deadline);
  return reference;
}

std::vector<WorkerInfo> Workers::list() const {
  std::vector<WorkerInfo> all;
  for (const auto& entry : impl_->setup->directory->all()) all.push_back(entry.info());
  return all;
}

void Workers::watch(std::function<void(const WorkerInfo&)> seen) {
  const std::lock_guard lock(impl_->watching);
  impl_->watcher = std::move(seen);
  impl_->reported.clear();
}

bool Workers::wait_until_gone(const std::string& worker, std::chrono::milliseconds timeout) {
  const Pool::Blocked blocked;
  const auto deadline = Deadline::after(timeout);
  std::unique_lock lock(impl_->watching);
  for (;;) {
    check(impl_->is_present, "{}: wait_until_gone: this worker has left", name());
    const auto found = impl_->known.find(worker);
    if (found != impl_->known.end() && found->second.state != WorkerInfo::State::kPresent)
      return true;
    if (deadline.expired()) return false;
    check(!impl_->is_reporting,
          "{}: wait_until_gone: the function given to watch() would wait for worker {}, but it "
          "learns of other workers only after it has returned; wait in another thread",
          name(), worker);
    impl_->looked.wait_for(lock, std::min(kLookAround, deadline.remaining()));
  }
}

std::unique_ptr<Workers> join(const std::string& name, const JoinOptions& given) {
  check_name(name);
  JoinOptions options = given;
  if (options.role.empty()) options.role = role_of(options, detect_launch_environment());
  find_job(name, options);
  WorkerEntry self = describe(name, options);
  Fd local = listen_unix(self.unix_name);
  Fd tcp = listen_tcp({self.tcp_host, 0});
  self.tcp_port = local_port(tcp);

  const auto setup = std::make_shared<const Setup>(
      Setup{.self = self,
            .key = options.secret->derive("calls"),
            .directory = std::make_shared<Directory>(options.store, options.lease),
            .max_message = options.max_message,
            .max_calls = std::max<std::size_t>(options.max_calls, 1),
            .max_bytes = options.max_bytes,
            .lease = options.lease,
            .spin = options.spin,
            .stats = CallStats(CallGauge::of_process(name), timeline_of_rank())});
  const auto impl = std::make_shared<Workers::Impl>(setup, options);
  impl->start();
  impl->is_present = true;
  std::unique_ptr<Workers> workers(new Workers(impl));
  try {
    if (options.prepare) options.prepare(*workers);
    impl->server->listen(std::move(local), std::move(tcp));
    Directory& directory = *setup->directory;
    const auto before = directory.find(name);
    if (before && is_gone(*before)) directory.change(*before, WorkerInfo::State::kLost);
    directory.enter(self);
  } catch (...) {
    impl->is_present = false;
    for (const auto& caller : impl->all_callers()) caller->close();
    impl->server->close();
    impl->pool->stop(Deadline::never());
    impl->server->forget_waiting();
    throw;
  }
  return workers;
}

std::unique_ptr<Workers> join(const JoinOptions& given) {
  const auto environment = detect_launch_environment();
  check(environment.launcher != "none",
        "join: no launcher sets the rank of this process; start it with `paceline run`, or give "
        "the worker "
        "a name: join(\"trainer0\", ...)");
  JoinOptions options = given;
  options.role = role_of(given, environment);
  return join(
      fmt::format("{}{}", options.role,
                  options.role == environment.role ? environment.role_rank : environment.rank),
      options);
}

}  // namespace paceline::rpc
