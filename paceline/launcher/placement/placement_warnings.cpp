#include "paceline/launcher/placement/placement_warnings.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <set>

#include <fmt/format.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/system/topology.h"

namespace paceline::launcher {
namespace {

constexpr std::array kBlasVariables = {"OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS",
                                       "BLIS_NUM_THREADS"};
// Each of these variables pins OpenMP's threads, including the main thread.
constexpr std::array kPinningVariables = {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY",
                                          "KMP_AFFINITY"};

constexpr int kMaxPids = 3;

std::optional<int> number_in(const Environment& env, const std::string& name) {
  const auto entry = env.find(name);
  if (entry == env.end()) return {};
  const std::string& text = entry->second;
  int number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);  // reads "4,2" as 4
  return number > 0 ? std::optional(number) : std::nullopt;
}

std::string percent(double share) { return fmt::format("{:.0f}%", 100 * share); }

int total_threads(const Placement& placement) {
  int total = 0;
  for (const RankPlacement& rank : placement.ranks) total += rank.num_threads;
  return total;
}

class Judge {
 public:
  explicit Judge(const PlacementFacts& facts)
      : facts_(facts), num_ranks_(facts.request.num_local_ranks) {
    PlacementRequest own_choice = facts.request;
    own_choice.threads_per_rank.reset();
    const Placement natural = plan_placement(facts.topology, own_choice);
    natural_threads_ = natural.ranks.front().num_threads;
    threads_ = facts.placement.ranks.front().num_threads;
  }

  std::vector<Warning> warnings() {
    look_at_number_of_threads();
    look_at_inherited_threads();
    look_at_mask();
    look_at_overlaps();
    look_at_blas_variables();
    for (Warning& warning : variable_warnings(facts_.inherited)) add(std::move(warning));
    look_at_other_jobs();
    return std::move(warnings_);
  }

 private:
  bool chosen_by_variable() const {
    return !facts_.threads_by_option && inherited_threads(facts_.inherited).has_value();
  }

  std::string whose_choice() const {
    return chosen_by_variable() ? fmt::format(" (OMP_NUM_THREADS={} is inherited)",
                                              *inherited_threads(facts_.inherited))
                                : "";
  }

  std::string thread_cure() const {
    if (threads_ <= natural_threads_) return "start fewer ranks";
    if (chosen_by_variable())
      return fmt::format("unset OMP_NUM_THREADS, or give --threads-per-rank {}", natural_threads_);
    return fmt::format("--threads-per-rank {} fits", natural_threads_);
  }

  void look_at_number_of_threads() {
    const int threads = total_threads(facts_.placement);
    const auto& quota = facts_.topology.quota;
    if (quota && threads > quota->cpus) {
      add({fmt::format("{} x {} need more than the {:.3g} cpus of time that {} grants{}",
                       counted(num_ranks_, "rank"), counted(threads_, "thread"), quota->cpus,
                       quota->source, whose_choice()),
           fmt::format("they run {} of the time at most, and a cgroup stops all of them at once "
                       "until its next period",
                       percent(quota->cpus / threads)),
           thread_cure() + ", or raise the limit"});
    } else if (facts_.placement.oversubscribed) {
      const int cpus = facts_.topology.num_cpus();
      add({fmt::format("{} x {} on {}{}", counted(num_ranks_, "rank"), counted(threads_, "thread"),
                       counted(cpus, "cpu"), whose_choice()),
           fmt::format("each runs {} of the time, and threads that wait for each other lose more "
                       "time (OMP_WAIT_POLICY=PASSIVE keeps them from spinning)",
                       percent(static_cast<double>(cpus) / threads)),
           thread_cure()});
    }
  }

  void look_at_inherited_threads() {
    const auto variable = facts_.inherited.find("OMP_NUM_THREADS");
    if (variable != facts_.inherited.end() && !variable->second.empty() &&
        !inherited_threads(facts_.inherited)) {
      add({fmt::format("OMP_NUM_THREADS='{}' is not a number of threads", variable->second),
           fmt::format("each rank gets {} instead", counted(threads_, "thread")),
           "unset it, or give it a number"});
    }
    if (!chosen_by_variable() || threads_ == natural_threads_) return;
    const int threads = threads_, cores = natural_threads_;
    const std::string what = fmt::format("OMP_NUM_THREADS={} is inherited", threads);
    const std::string cure = fmt::format(
        "unset it; if it is intended, give --threads-per-rank {} ({} would use every core)",
        threads, cores);
    if (threads < cores) {
      add({what, fmt::format("{} of every rank's {} cores stay idle", cores - threads, cores),
           cure});
    } else if (!facts_.placement.oversubscribed) {
      add({what, fmt::format("{} threads share {} in every rank", threads, counted(cores, "core")),
           cure});
    }
  }

  // Warns if there are more ranks than cores because this process was given only a part of the
  // machine, for instance by an outer launcher that binds its only process to one core.
  void look_at_mask() {
    const Topology& machine = facts_.topology;
    if (num_ranks_ <= machine.num_cores() || machine.other_cores.empty()) return;
    const bool mpi = facts_.inherited.contains("OMPI_COMM_WORLD_RANK");
    const bool slurm = facts_.inherited.contains("SLURM_STEP_ID");
    add({fmt::format(
             "this process was given {} only ({})",
             machine.num_cores() == 1 ? "1 core" : fmt::format("{} cores", machine.num_cores()),
             "cpus " + format_cpu_list(machine.cpus())),
         fmt::format("{} ranks share these cpus, and this machine's other cpus are not used",
                     num_ranks_),
         mpi     ? "mpirun --bind-to none lets paceline divide them"
         : slurm ? "srun --cpus-per-task=N gives more"
                 : "widen the mask or the cpuset (taskset, docker run --cpuset-cpus)"});
  }

  void look_at_overlaps() {
    if (facts_.request.binding.to != BindTo::kMap) return;
    std::map<int, int> owner;
    for (int rank = 0; rank < num_ranks_; ++rank) {
      for (const int cpu : facts_.placement.ranks[rank].cpus) {
        const auto [entry, is_first] = owner.emplace(cpu, rank);
        if (is_first) continue;
        return add(
            {fmt::format("--bind map: ranks {} and {} share cpu {}", entry->second, rank, cpu),
             "they take turns there, and all others wait for them",
             "give every rank cpus of its own"});
      }
    }
  }

  void look_at_blas_variables() {
    if (facts_.threads_by_option) return;
    for (const char* name : kBlasVariables) {
      const auto threads = number_in(facts_.inherited, name);
      if (!threads || *threads == threads_) continue;
      add({fmt::format("{}={} is inherited", name, *threads),
           fmt::format("matrix products compute with {}, everything else with {}",
                       counted(*threads, "thread"), counted(threads_, "thread")),
           fmt::format("unset it, or give --threads-per-rank {}", threads_)});
    }
  }

  void look_at_other_jobs() {
    const std::vector<int> mine = my_cpus();
    std::set<int> all(mine.begin(), mine.end()), shared;
    std::string pids;
    int threads = total_threads(facts_.placement), count = 0;
    for (const RunningJob& job : facts_.other_jobs) {
      std::vector<int> both;
      std::set_intersection(mine.begin(), mine.end(), job.cpus.begin(), job.cpus.end(),
                            std::back_inserter(both));
      if (both.empty()) continue;
      shared.insert(both.begin(), both.end());
      all.insert(job.cpus.begin(), job.cpus.end());
      threads += job.num_threads;
      if (++count <= kMaxPids) pids += fmt::format("{}{}", count == 1 ? "" : ", ", job.launcher);
    }
    const int cores = num_cores_among({all.begin(), all.end()});
    if (count == 0 || threads <= cores) return;
    if (count > kMaxPids) pids += ", ...";
    add({fmt::format(
             "{} (pid{} {}) compute{} on cpus {} as well",
             count == 1 ? "another paceline job" : fmt::format("{} other paceline jobs", count),
             count == 1 ? "" : "s", pids, count == 1 ? "s" : "",
             format_cpu_list({shared.begin(), shared.end()})),
         fmt::format("{} threads want {}: each runs about {} of the time", threads,
                     counted(cores, "core"), percent(static_cast<double>(cores) / threads)),
         "give each job cores of its own (taskset -c, --bind map:...), or wait"});
  }

  std::vector<int> my_cpus() const {
    std::set<int> cpus;
    for (const RankPlacement& rank : facts_.placement.ranks) {
      cpus.insert(rank.cpus.begin(), rank.cpus.end());
    }
    return {cpus.begin(), cpus.end()};
  }

  // Counts the hardware threads of one core once. A cpu that belongs to no known core counts as one
  // core.
  int num_cores_among(const std::vector<int>& cpus) const {
    int count = 0;
    std::set<int> known;
    for (const auto* cores : {&facts_.topology.cores, &facts_.topology.other_cores}) {
      for (const Core& core : *cores) {
        known.insert(core.cpus.begin(), core.cpus.end());
        count += std::any_of(core.cpus.begin(), core.cpus.end(), [&](int cpu) {
          return std::binary_search(cpus.begin(), cpus.end(), cpu);
        });
      }
    }
    return count + static_cast<int>(std::count_if(cpus.begin(), cpus.end(),
                                                  [&](int cpu) { return !known.contains(cpu); }));
  }

  void add(Warning warning) { warnings_.push_back(std::move(warning)); }

  const PlacementFacts& facts_;
  const int num_ranks_;
  int natural_threads_ = 1;  // the number that the plan would choose
  int threads_ = 1;          // the number that the ranks get
  std::vector<Warning> warnings_;
};

}  // namespace

std::string to_text(const Warning& warning) {
  return fmt::format("{}: {}; {}", warning.what, warning.price, warning.cure);
}

std::optional<int> inherited_threads(const Environment& inherited) {
  return number_in(inherited, "OMP_NUM_THREADS");
}

std::vector<Warning> placement_warnings(const PlacementFacts& facts) {
  return Judge(facts).warnings();
}

std::vector<Warning> variable_warnings(const Environment& inherited) {
  std::vector<Warning> warnings;
  for (const char* name : kPinningVariables) {
    const auto entry = inherited.find(name);
    if (entry == inherited.end() || entry->second == "false" || entry->second == "none") continue;
    warnings.push_back(
        {fmt::format("{}={} is inherited", name, entry->second),
         "OpenMP pins the main thread to one core; every thread that it starts later (data loader, "
         "communication) is kept on that core",
         "unset it; ranks are bound to their cores anyway"});
    break;  // one warning is enough
  }
  const auto limit = number_in(inherited, "OMP_THREAD_LIMIT");
  const auto wanted = inherited_threads(inherited);
  if (limit && wanted && *limit < *wanted) {
    warnings.push_back({fmt::format("OMP_THREAD_LIMIT={} is inherited", *limit),
                        fmt::format("OpenMP starts {} of {} threads", *limit, *wanted),
                        "unset it"});
  }
  return warnings;
}

}  // namespace paceline::launcher
