#include "paceline/launcher/job/worker_environment.h"

#include <filesystem>

#include "paceline/launcher/placement/placement_warnings.h"

namespace paceline::launcher {
namespace {

// GNU's OpenMP spins for milliseconds unless told otherwise, and where any other program wants the
// core, the thread that is waited for does not run as long. This many rounds take as long as a
// sleep and a wake-up (docs/placement.md). LLVM's and Intel's OpenMP yield the core while they
// spin.
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
  env["TORCHELASTIC_MAX_RESTARTS"] = std::to_string(place.max_restarts);
  env["TORCHELASTIC_RUN_ID"] = options.run_id;
}

void set_threads(Environment& env, const LaunchOptions& options, int local_rank,
                 const Placement& placement) {
  const std::string threads = std::to_string(placement.ranks[local_rank].num_threads);
  if (options.threads_per_rank) {
    env["OMP_NUM_THREADS"] = threads;
    env["OPENBLAS_NUM_THREADS"] = threads;
    // These two follow OMP_NUM_THREADS as long as they are not set.
    for (const char* name : {"MKL_NUM_THREADS", "BLIS_NUM_THREADS"}) {
      if (env.contains(name)) env[name] = threads;
    }
  }
  env.erase("PACELINE_THREAD_SHARE");  // of a launcher around this one
  if (!inherited_threads(env)) env["OMP_NUM_THREADS"] = env["PACELINE_THREAD_SHARE"] = threads;
  // A user who chose the number of OpenMP threads means OpenBLAS as well.
  env.try_emplace("OPENBLAS_NUM_THREADS", std::to_string(*inherited_threads(env)));
  // Threads that spin while they wait would steal the cpu from the ranks they wait for.
  if (placement.oversubscribed) env.try_emplace("OMP_WAIT_POLICY", "PASSIVE");
  if (!env.contains("OMP_WAIT_POLICY")) env.try_emplace("GOMP_SPINCOUNT", kShortSpin);
}

// Another launcher's variables about this process do not hold for its ranks, and would make a
// launcher that a rank starts itself look like the same.
void forget_outer_launcher(Environment& env) {
  for (const char* name :
       {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID",
        "MPI_LOCALNRANKS", "TORCHELASTIC_USE_AGENT_STORE"}) {
    env.erase(name);
  }
}

// Relative folders are the launcher's, whatever folder a rank changes to.
void settle_folders(Environment& env) {
  for (const char* name : {"PACELINE_PROFILE", "PACELINE_STEP_LOG", "PACELINE_TIMELINE_DIR"}) {
    const auto folder = env.find(name);
    if (folder == env.end() || folder->second.empty()) continue;
    folder->second = std::filesystem::absolute(folder->second);
  }
}

}  // namespace

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
  env.erase("PACELINE_LOGICAL_SHARDS");  // the options' default
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

}  // namespace paceline::launcher
