#include "paceline/engine/rendezvous/rendezvous.h"

#include <algorithm>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>

#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/core/system/host.h"
#include "paceline/engine/rendezvous/arrival.h"
#include "paceline/engine/rendezvous/hosted_store.h"
#include "paceline/engine/rendezvous/launch_environment.h"
#include "paceline/engine/rendezvous/meeting_point.h"
#include "paceline/engine/store/file_store.h"
#include "paceline/engine/store/memory_store.h"
#include "paceline/engine/store/tcp_store.h"
#include "paceline/engine/store/tcp_store_server.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

constexpr auto kGoodbyeTimeout = 5s;
constexpr auto kFailureTimeout = 2s;
constexpr std::chrono::milliseconds kDeclineTimeout = 10s;
constexpr auto kNoticePause = 5ms;
// The name of a use of rank 0's store (hosted_store.h). This use lasts on each rank until group
// "world" has formed, or until the rank has left.
constexpr char kWorldUse[] = "world";

// Registers this process as a rank of a meeting that it has not left. A forked child is not
// registered.
class Membership {
 public:
  // `place` distinguishes the meetings of one process.
  Membership(const std::string& place, int rank) : key_(key_of(place, rank)) {
    const std::lock_guard lock(mutex());
    all().insert(key_);
  }
  ~Membership() {
    const std::lock_guard lock(mutex());
    all().erase(all().find(key_));
  }
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  static bool exists(const std::string& place, int rank) {
    const std::lock_guard lock(mutex());
    return all().contains(key_of(place, rank));
  }

 private:
  static std::string key_of(const std::string& place, int rank) {
    return fmt::format("process {}, rank {}, {}", ::getpid(), rank, place);
  }
  static std::mutex& mutex() {
    static std::mutex mutex;  // guards all()
    return mutex;
  }
  // Never destroyed, because a group in a global variable may end after the function's static
  // variables.
  static std::multiset<std::string>& all() {
    static auto& all = *new std::multiset<std::string>;
    return all;
  }

  const std::string key_;
};

// Keeps a job's store reachable, and leaves the meeting on destruction, except in a child of
// fork(). Members are destroyed in reverse order: the client before the server.
struct Attendance {
  const OwnerProcess owner;
  std::optional<Membership> membership;  // set once every rank has arrived
  std::unique_ptr<TcpStoreServer>
      server;                        // on rank 0, if it hosts the store; moved into `hosted` later
  std::shared_ptr<TcpStore> client;  // client of rank 0's or the launcher's store
  std::shared_ptr<Store> store;
  bool at_rank_zero = false;  // rank 0 hosts the store
  std::optional<Secret> secret;
  std::unique_ptr<Arrival> arrival;     // set once every rank has arrived
  std::unique_ptr<HostedStore> hosted;  // set like `arrival`, if rank 0 hosts the store
  std::optional<Bulletin> bulletin;     // set while the notice is published
  std::string address;                  // local address of the connection to the store, if any

  Attendance() = default;
  Attendance(const Attendance&) = delete;
  Attendance& operator=(const Attendance&) = delete;
  ~Attendance() {
    if (!owner.is_this()) return;
    take_notice_down();
    try {
      if (arrival) {
        leave();
      } else {
        wait_until_others_know();
      }
    } catch (const std::exception& error) {
      log::debug(std::string("leaving the job's store: ") + error.what());
    }
  }

  void leave() {
    const auto timeout = store->timeout();  // restored below, because the caller may own the store
    store->set_timeout(kGoodbyeTimeout);
    if (hosted) hosted->end(kWorldUse);
    arrival->leave();
    store->set_timeout(timeout);
  }

  // Called when the meeting has failed. Ranks that wait in rank 0's store must learn the reason,
  // not only that the store is no longer reachable.
  void wait_until_others_know() {
    store.reset();
    client.reset();
    if (server) server->wait_until_clients_left(kFailureTimeout);
  }

  void take_notice_down() {
    if (bulletin && server) bulletin->remove();
    bulletin.reset();
  }
};

std::string place_of(const RendezvousOptions& options, const LaunchEnvironment& environment,
                     const GetVariable& variable) {
  if (options.store) return fmt::format("store {}", fmt::ptr(options.store.get()));
  const auto point = find_meeting_point(options.init_method, environment, variable);
  return fmt::format("{} {} {} {}", to_string(point.endpoint), point.job, point.path,
                     environment.restart_count);
}

LaunchEnvironment find_own_rank(const RendezvousOptions& options, const GetVariable& variable) {
  check(options.rank.has_value() == options.world_size.has_value(),
        "give both rank and world_size, or neither");
  const bool elsewhere = options.store != nullptr || options.init_method != "env://";
  check(options.rank || !elsewhere, "rank and world_size are needed with {}",
        options.store ? "a store" : "init_method " + options.init_method);
  if (!options.rank) return detect_launch_environment(variable);
  check(*options.world_size > 0, "world_size {} must be at least 1", *options.world_size);
  check(*options.rank >= 0 && *options.rank < *options.world_size,
        "rank {} is outside a world of {}", *options.rank, *options.world_size);
  LaunchEnvironment environment;
  environment.rank = *options.rank;
  environment.world_size = *options.world_size;
  environment.restart_count = read_number(variable, "TORCHELASTIC_RESTART_COUNT").value_or(0);
  return environment;
}

void connect(Attendance& attendance, const Endpoint& endpoint, const Secret& secret,
             std::chrono::milliseconds timeout) {
  attendance.client = std::make_shared<TcpStore>(endpoint, secret, timeout);
  attendance.address = attendance.client->local_address();
  attendance.store = attendance.client;
}

std::unique_ptr<TcpStoreServer> host_store(const Endpoint& endpoint, const Secret& secret,
                                           std::chrono::milliseconds timeout) {
  await_address(endpoint.host, Deadline::after(timeout));
  try {
    return std::make_unique<TcpStoreServer>(listen_tcp_as_host(endpoint), secret);
  } catch (const Error& error) {
    throw error.reworded(
        fmt::format("rank 0 cannot host the job's store: {}. Is another job, or a second process "
                    "with rank 0, at {}?",
                    error.what(), to_string(endpoint)));
  }
}

// Hosts rank 0's store and announces it to the other ranks by a notice on this host's board.
Secret host_with_notice(Attendance& attendance, const Endpoint& endpoint,
                        const std::optional<Secret>& given, std::chrono::milliseconds timeout) {
  const Secret secret = given ? *given : Secret::generate();
  attendance.server = host_store(endpoint, secret, timeout);
  const Endpoint actual{endpoint.host, attendance.server->port()};
  attendance.bulletin->publish(actual, secret);
  connect(attendance, actual, secret, timeout);
  return secret;
}

// Finds rank 0's store by its notice. A notice may belong to a dead job: no rank answers at its
// endpoint, or a rank with another secret answers. In that case the right notice has not been
// written yet.
Secret join_by_notice(Attendance& attendance, std::chrono::milliseconds timeout) {
  auto deadline = Deadline::after(std::min<std::chrono::milliseconds>(timeout, 24h * 365));
  std::string cause = "rank 0 has left no notice there";
  for (Vigil vigil;;) {
    if (const auto notice = attendance.bulletin->read()) {
      try {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining());
        connect(attendance, notice->endpoint, notice->secret,
                std::min<std::chrono::milliseconds>(left, 300ms));
        attendance.store->set_timeout(timeout);
        return notice->secret;
      } catch (const Error& error) {
        cause = error.what();
      }
    }
    if (vigil.sees_passed(deadline)) {
      fail(ErrorCode::kTimeout, {.ranks = {0}, .deadline = timeout},
           "rank 0 was not found within {} ms through {}: {}", timeout.count(),
           attendance.bulletin->path(), cause);
    }
    std::this_thread::sleep_for(kNoticePause);  // no event signals that the notice has appeared
  }
}

Secret meet_by_notice(Attendance& attendance, const std::string& job, const Endpoint& endpoint,
                      const LaunchEnvironment& environment, const RendezvousOptions& options,
                      const GetVariable& variable, const std::optional<Secret>& given) {
  attendance.at_rank_zero = true;
  attendance.bulletin.emplace(variable, job);
  return environment.rank == 0 ? host_with_notice(attendance, endpoint, given, options.timeout)
                               : join_by_notice(attendance, options.timeout);
}

Secret meet_at_rank_zero(Attendance& attendance, const Endpoint& endpoint,
                         const LaunchEnvironment& environment, const RendezvousOptions& options,
                         const GetVariable& variable, const std::optional<Secret>& given) {
  if (!given && is_loopback(endpoint.host)) {
    return meet_by_notice(attendance, "tcp-" + to_string(endpoint), endpoint, environment, options,
                          variable, given);
  }
  check(given.has_value(),
        "a job whose store is at {} needs a secret that all its hosts share: make one with `(umask "
        "077; openssl rand -hex 32 > job.secret)`, copy it to every host and set "
        "PACELINE_SECRET_FILE=job.secret",
        to_string(endpoint));
  attendance.at_rank_zero = true;
  Endpoint store = endpoint;
  if (environment.rank == 0) {
    attendance.server = host_store(endpoint, *given, options.timeout);
    if (!is_of_this_host(endpoint.host))
      store.host = "127.0.0.1";  // NAT may not route the public address back to this host
  }
  connect(attendance, store, *given, options.timeout);
  return *given;
}

// The ranks trust a store or a file that the caller chose, so the secret may travel through it.
Secret secret_through(Store& store, const LaunchEnvironment& environment,
                      const std::optional<Secret>& given) {
  if (given) return *given;
  const auto key = fmt::format("rendezvous/{}/secret", environment.restart_count);
  const auto mine = Secret::generate().to_hex();
  return Secret::from_text(store.compare_set(key, "", mine));
}

Secret open_store(Attendance& attendance, const LaunchEnvironment& environment,
                  const RendezvousOptions& options, const GetVariable& variable) {
  if (options.store) {
    attendance.store = options.store;
    return secret_through(*options.store, environment, options.secret);
  }
  const auto given = options.secret ? options.secret : find_job_secret(variable);
  const auto point = find_meeting_point(options.init_method, environment, variable);
  switch (point.kind) {
    case MeetingPoint::Kind::kLauncher:
      check(given.has_value(),
            "PACELINE_STORE={} is set, but neither PACELINE_SECRET_FD nor "
            "PACELINE_SECRET_FILE is",
            to_string(point.endpoint));
      connect(attendance, point.endpoint, *given, options.timeout);
      return *given;
    case MeetingPoint::Kind::kRankZero:
      return meet_at_rank_zero(attendance, point.endpoint, environment, options, variable, given);
    case MeetingPoint::Kind::kNotice:
      return meet_by_notice(attendance, point.job, {"127.0.0.1", 0}, environment, options, variable,
                            given);
    case MeetingPoint::Kind::kFile:
      break;
  }
  attendance.store = std::make_shared<FileStore>(point.path, options.timeout);
  return secret_through(*attendance.store, environment, given);
}

// The address that PACELINE_SOCKET_IFNAME selects; otherwise the local address of the connection to
// the store; or, if there is none or it is a loopback or link-local address, the address of the
// first interface that other hosts can reach.
std::string own_address(const GetVariable& variable, const std::string& connection_address) {
  const std::string wanted = variable("PACELINE_SOCKET_IFNAME").value_or("");
  const bool is_reachable = !connection_address.empty() && !is_loopback(connection_address) &&
                            !is_link_local(connection_address);
  if (wanted.empty() && is_reachable) return connection_address;
  const bool prefer_v6 = connection_address.find(':') != std::string::npos;
  return choose_address(wanted, interface_addresses(), prefer_v6);
}

// Finds out which ranks share a host, which explicit arguments and a RANK that was set by hand do
// not reveal.
void learn_hosts(Rendezvous& result, const std::vector<std::string>& hosts,
                 const GetVariable& variable, const std::string& connection_address) {
  auto& environment = result.environment;
  const auto& mine = hosts[static_cast<std::size_t>(environment.rank)];
  const auto local = std::count(hosts.begin(), hosts.end(), mine);
  const bool is_local_rank_unknown =
      environment.launcher == "none" ||
      (environment.launcher == "env" && environment.local_world_size == 1);
  if (is_local_rank_unknown) {
    environment.local_rank =
        static_cast<int>(std::count(hosts.begin(), hosts.begin() + environment.rank, mine));
    environment.local_world_size = static_cast<int>(local);
  }
  if (local == environment.world_size) return;  // one host: loopback suffices
  result.address = own_address(variable, connection_address);
  if (is_loopback(result.address)) {
    log::warning(
        "the job spans hosts but rank " + std::to_string(environment.rank) +
        " can be reached by loopback only: MASTER_ADDR or PACELINE_SOCKET_IFNAME must select an "
        "address that all hosts can reach");
  }
}

void log_outcome(const Rendezvous& result) {
  const auto& environment = result.environment;
  log::info(
      fmt::format("rank {} of {}, local rank {} of {}, launched by {}, generation {}{}, at {}",
                  environment.rank, environment.world_size, environment.local_rank,
                  environment.local_world_size, environment.launcher, environment.restart_count,
                  environment.loaded_before ? " (forked)" : "", result.address));
}

// If rank 0 hosts the store, it opens a new store for each meeting. Returns null when the store in
// `attendance` belonged to the previous meeting and rank 0 has closed it since.
std::unique_ptr<Arrival> arrive(const Attendance& attendance, const LaunchEnvironment& environment,
                                std::chrono::milliseconds timeout) {
  try {
    auto arrival = std::make_unique<Arrival>(attendance.store, environment);
    if (!attendance.at_rank_zero || arrival->round() == 0) return arrival;
    attendance.store->wait({"rendezvous/closed"}, timeout);  // a key that is never set
  } catch (const Error& error) {
    if (!attendance.at_rank_zero) throw;
    if (error.code() == ErrorCode::kPeerLost) return nullptr;
    if (error.code() != ErrorCode::kTimeout) throw;
    fail(ErrorCode::kTimeout, {.ranks = {0}, .deadline = timeout},
         "rank {} waited {} ms for rank 0, which has not left the group before this one: destroy "
         "every group on rank 0 too",
         environment.rank, timeout.count());
  }
  return nullptr;
}

// Joins the meeting; returns when every rank has arrived.
std::shared_ptr<Attendance> attend(const LaunchEnvironment& environment,
                                   const RendezvousOptions& options, const GetVariable& variable) {
  for (;;) {
    auto attendance = std::make_shared<Attendance>();
    attendance->secret = open_store(*attendance, environment, options, variable);
    auto arrival = arrive(*attendance, environment, options.timeout);
    if (!arrival) continue;
    arrival->meet(options.timeout);
    attendance->arrival = std::move(arrival);
    return attendance;
  }
}

// Without this warning, a user who forgot the launcher would only notice that the program is slow.
void warn_of_group_of_one() {
  log::warning(fmt::format(
      "init_process_group: no launcher started this process, so it runs alone, as a group of one: "
      "for several ranks use paceline run --nproc-per-node N {}; to run alone on purpose, set "
      "RANK=0 WORLD_SIZE=1",
      own_command()));
}

}  // namespace

LaunchEnvironment own_launch_environment(const RendezvousOptions& options,
                                         const GetVariable& variable) {
  return find_own_rank(options, variable);
}

Rendezvous rendezvous(const RendezvousOptions& options, const GetVariable& variable) {
  const auto environment = find_own_rank(options, variable);
  if (environment.world_size == 1 && !options.store) {
    if (!options.rank && environment.launcher == "none") warn_of_group_of_one();
    return {environment, std::make_shared<MemoryStore>(),
            options.secret.value_or(Secret::generate())};
  }
  const std::string place = place_of(options, environment, variable);
  check(!Membership::exists(place, environment.rank),
        "rank {}: this process already belongs to group \"world\" or a subgroup; destroy every "
        "group of this process first",
        environment.rank);
  const auto attendance = attend(environment, options, variable);
  const auto hosts = attendance->arrival->hosts();
  attendance->membership.emplace(place, environment.rank);
  attendance->take_notice_down();

  Rendezvous result{environment, {attendance, attendance->store.get()}, *attendance->secret};
  if (attendance->at_rank_zero) {
    std::vector<int> all(hosts.size());
    std::iota(all.begin(), all.end(), 0);
    attendance->hosted = std::make_unique<HostedStore>(std::move(attendance->server),
                                                       attendance->client, 0, environment.rank);
    attendance->hosted->begin(kWorldUse, all);
    result.hosted = {attendance, attendance->hosted.get()};
  }
  result.round = attendance->arrival->round();
  learn_hosts(result, hosts, variable, attendance->address);
  log_outcome(result);
  return result;
}

void decline_rendezvous(const Error& reason, const RendezvousOptions& options,
                        const GetVariable& variable) {
  try {
    const auto environment = find_own_rank(options, variable);
    if (environment.world_size == 1) return;
    if (Membership::exists(place_of(options, environment, variable), environment.rank)) return;
    RendezvousOptions soon = options;
    soon.timeout = std::min(options.timeout, kDeclineTimeout);
    Attendance attendance;
    open_store(attendance, environment, soon, variable);
    Arrival arrival(attendance.store, environment);
    arrival.decline(reason);
    if (attendance.server) arrival.wait_for_others(soon.timeout);
  } catch (const std::exception& error) {
    log::debug(std::string("telling the others why this rank takes no part: ") + error.what());
  }
}

}  // namespace paceline
