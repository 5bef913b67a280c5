#include "paceline/launcher/ranks/job_services.h"

#include <array>
#include <cstdlib>
#include <filesystem>

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/core/system/socket.h"
#include "paceline/engine/rendezvous/launch_environment.h"
#include "paceline/launcher/placement/placement_warnings.h"

namespace paceline::launcher {

namespace {

// GNU's OpenMP spins for milliseconds by default. If another program also uses the core, the thread
// for which the others wait cannot run during that time. This many rounds take as long as a sleep
// and a wake-up (docs/performance.md). LLVM's and Intel's OpenMP yield the core while they spin.
constexpr const char* kShortSpin = "1000";

void set_place(Environment& env, const LaunchOptions& options, const NodePlace& place,
               int local_rank) {
  const int rank = place.rank_of(local_rank);
  const RankRole role = place.role_of(rank);
  env["RANK"] = std::to_string(rank);
  env["WORLD_SIZE"] = std::to_string(place.world_size);
  env["LOCAL_RANK"] = std::to_string(local_rank);
  env["LOCAL_WORLD_SIZE"] = std::to_string(options.num_local_ranks);
  env["GROUP_RANK"] = std::to_string(place.node_rank);
  env["GROUP_WORLD_SIZE"] = std::to_string(place.num_nodes);
  env["ROLE_NAME"] = role.name;
  env["ROLE_RANK"] = std::to_string(role.number);
  env["ROLE_WORLD_SIZE"] = std::to_string(role.count);
  env["TORCHELASTIC_RESTART_COUNT"] = std::to_string(place.generation);
  env["TORCHELASTIC_MAX_RESTARTS"] = std::to_string(place.restarts.max_restarts);
  env["TORCHELASTIC_RUN_ID"] = options.run_id;
}

void set_threads(Environment& env, const LaunchOptions& options, int local_rank,
                 const Placement& placement) {
  const std::string threads = std::to_string(placement.ranks[local_rank].num_threads);
  if (options.threads_per_rank) {
    env["OMP_NUM_THREADS"] = threads;
    env["OPENBLAS_NUM_THREADS"] = threads;
    // These two libraries use OMP_NUM_THREADS unless their own variable is set.
    for (const char* name : {"MKL_NUM_THREADS", "BLIS_NUM_THREADS"}) {
      if (env.contains(name)) env[name] = threads;
    }
  }
  env.erase("PACELINE_THREAD_SHARE");  // set by an outer launcher
  if (!inherited_threads(env)) env["OMP_NUM_THREADS"] = env["PACELINE_THREAD_SHARE"] = threads;
  // If the user chose a number of OpenMP threads, OpenBLAS uses the same number.
  env.try_emplace("OPENBLAS_NUM_THREADS", std::to_string(*inherited_threads(env)));
  // Threads that spin while they wait would take processor time from the ranks for which they wait.
  if (placement.oversubscribed) env.try_emplace("OMP_WAIT_POLICY", "PASSIVE");
  if (!env.contains("OMP_WAIT_POLICY")) env.try_emplace("GOMP_SPINCOUNT", kShortSpin);
}

// Variables with which `paceline run` passes its own files and socket to its ranks.
constexpr std::array kFilesOfJob = {"PACELINE_FLIGHT_DIR", "PACELINE_FLIGHT_KEEP",
                                    "PACELINE_MEMORY_CHECKPOINT", "PACELINE_TIMELINE_DIR",
                                    "PACELINE_JOB_SOCKET"};

// Removes another launcher's variables about this process. They do not describe this launcher's
// ranks, and if a rank starts a launcher, the processes of that launcher could take them for their
// own.
void forget_outer_launcher(Environment& env) {
  for (const char* name :
       {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID",
        "MPI_LOCALNRANKS", "TORCHELASTIC_USE_AGENT_STORE"}) {
    env.erase(name);
  }
  if (!env.contains("PACELINE_STORE")) return;
  for (const char* name : kFilesOfJob) env.erase(name);
}

// Makes relative folders absolute: they are relative to the launcher's folder, even if a rank
// changes to another one.
void settle_folders(Environment& env) {
  for (const char* name : {"PACELINE_PROFILE", "PACELINE_STEP_LOG", "PACELINE_TIMELINE_DIR"}) {
    const auto folder = env.find(name);
    if (folder == env.end() || folder->second.empty()) continue;
    folder->second = std::filesystem::absolute(folder->second);
  }
}

}  // namespace

void leave_outer_job() {
  if (std::getenv("PACELINE_STORE") == nullptr) return;
  for (const char* name : kFilesOfJob) unsetenv(name);
}

Environment worker_environment(const Environment& inherited, const LaunchOptions& options,
                               const NodePlace& place, int local_rank, const Placement& placement,
                               const JobAddresses& addresses) {
  Environment env = inherited;
  forget_outer_launcher(env);
  settle_folders(env);
  set_place(env, options, place, local_rank);
  set_threads(env, options, local_rank, placement);
  if (!options.backend.empty()) env["PACELINE_BACKEND"] = options.backend;
  if (options.encrypt) env["PACELINE_ENCRYPT"] = "1";
  env.erase("PACELINE_LOGICAL_SHARDS");  // the options already contain its value
  if (options.logical_shards > 0) {
    env["PACELINE_LOGICAL_SHARDS"] = std::to_string(options.logical_shards);
  }
  env["MASTER_ADDR"] = addresses.master_addr;
  env["MASTER_PORT"] = std::to_string(addresses.master_port);
  env["PACELINE_STORE"] = addresses.store;
  env["PACELINE_SECRET_FD"] = std::to_string(addresses.secret_fd);
  return env;
}

void set_terminal(Environment& env, const LaunchOptions& options, const NodePlace& place,
                  int local_rank) {
  const bool shown = options.streams_shown(local_rank, place.rank_of(local_rank)).out;
  const bool draws = options.terminal && !options.prefix_lines && shown;
  env["PACELINE_TERMINAL"] = draws ? "1" : "0";
  const bool colours_wanted = env.contains("FORCE_COLOR") || env.contains("CLICOLOR_FORCE");
  if (draws || colours_wanted) return;
  env["TERM"] = "dumb";
  env.erase("COLORTERM");
  env.try_emplace("NO_COLOR", "1");
}

namespace {

constexpr std::chrono::seconds kAnswer{1};

// Returns the secret in the user's file, which ranks can read as well, or else a new one. Does not
// use the secret that an outer job passed to this process.
Secret choose_secret() {
  const auto of_file = find_job_secret([](const std::string& name) {
    return name == "PACELINE_SECRET_FD" ? std::nullopt : process_environment()(name);
  });
  return of_file ? *of_file : Secret::generate();
}

}  // namespace

Secret require_job_secret(const LaunchOptions& options) {
  if (options.part) return Secret::from_text(options.part->secret);
  const auto secret = find_job_secret(process_environment());
  check(secret.has_value(),
        "--nnodes {}: a job on several nodes needs PACELINE_SECRET_FILE, the same file (mode 0600) "
        "on every node; make one with: (umask 077; openssl rand -hex 32 > job.secret); or let one "
        "launcher start all nodes: --hosts",
        options.num_nodes);
  return *secret;
}

JobServices::JobServices(const LaunchOptions& options) : secret_(choose_secret()) {
  claim("127.0.0.1", options.master_addr, options.master_port);
}

JobServices::JobServices(const std::string& host, const Secret& secret) : secret_(secret) {
  claim(host, host, 0);
}

void JobServices::claim(const std::string& host, const std::string& master_addr,
                        std::uint16_t master_port) {
  store_listener_ = listen_tcp_for_others({host, 0});
  reserved_ = reserve_port(master_port);
  offer_ = {{host, local_port(store_listener_)}, {master_addr, reserved_.port}};
  set_addresses();
}

void JobServices::set_addresses() {
  addresses_.store = to_string(offer_.store);
  addresses_.master_addr = offer_.master.host;
  addresses_.master_port = offer_.master.port;
}

void JobServices::use(const Offer& others) {
  store_listener_.reset();
  reserved_ = {};
  offer_ = others;
  set_addresses();
}

Fd JobServices::make_secret_fd() const {
  const std::string text = secret_.to_hex();
  Fd fd(memfd_create("paceline-secret", MFD_CLOEXEC));
  if (!fd || !write_whole(fd.get(), as_bytes(text))) {
    throw system_error("memfd_create, for the job's secret");
  }
  lseek(fd.get(), 0, SEEK_SET);
  return fd;
}

void JobServices::start_store() {
  if (store_listener_) {
    store_ = std::make_unique<TcpStoreServer>(std::move(store_listener_), secret_);
  }
}

Absence JobServices::meeting(int generation, int world_size) {
  if (!store_) return {};
  try {
    if (!observer_) observer_ = std::make_unique<TcpStore>(offer_.store, secret_, kAnswer);
    return absence_from_meeting(*observer_, generation, world_size);
  } catch (const Error&) {
    observer_.reset();
    return {};
  }
}

JobMemory::JobMemory() : file_(memfd_create("paceline-memory-checkpoint", MFD_CLOEXEC)) {}

void JobMemory::add_variables(Environment& environment) const {
  if (!file_) return;
  environment.try_emplace("PACELINE_MEMORY_CHECKPOINT",
                          fmt::format("/proc/{}/fd/{}", getpid(), file_.get()));
}

}  // namespace paceline::launcher
