#include "apps/advise/mesh_advice.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <sstream>

#include <fmt/format.h>

#include "paceline/engine/collectives/group/device_mesh.h"
#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/collectives/selection/calibration.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/option_text.h"
#include "paceline/engine/core/system/topology.h"
#include "paceline/launcher/placement/placement.h"
#include "paceline/launcher/spawn/spawn.h"
#include "paceline/planning/forecast/best_ways.h"

#include "apps/advise/trial.h"
#include "apps/cli/commands.h"
#include "apps/cli/option_value.h"

namespace paceline::apps {

namespace {

using planning::JobProfile;
using planning::Machine;
using planning::Search;
using planning::Way;

constexpr std::chrono::milliseconds kLookForProfileEvery{100};
constexpr long kMaxWaysToTry = 1000;
constexpr int kMaxRanksPerCore = 4;  // the most ranks per core in the measurement

// The costs of links. Those between ranks of this host are measured now; those of the network are
// the ones that `paceline bench --calibrate` has stored, or the defaults.
CostModel measured_links() {
  const CostModel known = load_calibration(calibration_path()).value_or(CostModel());
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/costs.json";
  spawn(2, [&](ProcessGroup& group) {
    const Calibration calibration = measure_costs(group, known);
    if (group.rank() == 0) save_calibration(calibration.costs, file);
  });
  return load_calibration(file).value_or(known);
}

bool is_flag(const std::string& word, const std::string& flag) {
  return word == flag || word.starts_with(flag + "=");
}

// Returns `command` with these flags added; flags of the same names in the command are replaced.
std::vector<std::string> with_flags(std::vector<std::string> command,
                                    const std::vector<std::string>& flags) {
  std::vector<std::string> replaced = {
      "--batch-size"};  // per rank; the global batch is set instead
  for (const std::string& word : flags) {
    if (word.starts_with("--")) replaced.push_back(word);
  }
  for (auto word = command.begin() + 1; word != command.end();) {
    const bool is_replaced =
        std::any_of(replaced.begin(), replaced.end(),
                    [&](const std::string& flag) { return is_flag(*word, flag); });
    if (!is_replaced) {
      ++word;
      continue;
    }
    const bool has_value_behind =
        word->find('=') == std::string::npos && std::next(word) != command.end();
    word = command.erase(word, word + (has_value_behind ? 2 : 1));
  }
  command.insert(command.end(), flags.begin(), flags.end());
  return command;
}

class MeshAdviser {
 public:
  MeshAdviser(const MeshAdviceOptions& options, std::vector<std::string> program)
      : options_(options),
        program_(std::move(program)),
        topology_(discover_topology()),
        signals_(block_ending_signals()) {
    const bool has_profile = !options.profile.empty() && std::filesystem::exists(options.profile);
    if (program_.empty() && !has_profile) {
      throw UsageError(
          "no program given: paceline advise --mesh [options] -- PROGRAM, or --profile FILE with "
          "an existing profile");
    }
    if (!options.check.empty() && (program_.empty() || !options.simulate.empty()))
      throw UsageError(
          "--check runs PROGRAM on this machine: give PROGRAM, and leave out --simulate");
    if (!options.check.empty() && !options.plans_meshes) throw UsageError("--check needs --mesh");
    if (options.ranks > 0 && !options.simulate.empty())
      throw UsageError("--ranks is for this machine; with --simulate, set ranks= for each host");
    machine_ = machine();
  }

  int run() {
    profile_ = profile();
    machine_.links = measured_links();
    if (!options_.simulate.empty()) machine_ = simulated(machine_);
    global_batch_ = options_.global_batch > 0 ? options_.global_batch : profile_.samples_per_step;
    fmt::print("{}: {} parameters, {}; {}\nglobal batch: {} samples; costs: {}\n",
               profile_.program.empty() ? "program" : profile_.program, profile_.parameters(),
               counted(profile_.layers.size(), "layer"), describe(machine_), global_batch_,
               provenance(machine_.links));
    if (options_.memory) print_memory();
    if (options_.plans_meshes) advise();
    return exit_code_;
  }

 private:
  Machine machine() const {
    Machine machine{.hosts = 1,
                    .ranks_per_host = static_cast<int>(
                        options_.ranks > 0 ? options_.ranks : launcher::automatic_ranks(topology_)),
                    .cores_per_host = static_cast<double>(launcher::automatic_ranks(topology_)),
                    .memory_bytes = static_cast<double>(usable_memory())};
    return options_.simulate.empty() ? machine : simulated({});
  }

  // The machines that the option describes. Links have the costs of this machine unless the option
  // sets them.
  Machine simulated(const Machine& here) const {
    try {
      return planning::parse_machine(options_.simulate, Machine{.links = here.links});
    } catch (const SettingError& error) {
      throw UsageError(fmt::format("--simulate: {}", error.what()));
    }
  }

  int threads_of(int ranks) const {
    return launcher::plan_placement(topology_, {.num_local_ranks = ranks})
        .ranks.front()
        .num_threads;
  }

  JobProfile profile() const {
    if (!options_.profile.empty() && std::filesystem::exists(options_.profile))
      return planning::load_profile(options_.profile);
    JobProfile measured = measure();
    if (!options_.profile.empty()) planning::save_profile(measured, options_.profile);
    return measured;
  }

  // Measures with as many ranks as the plan has on a host, because ranks that share a core slow
  // each other down, but with at most kMaxRanksPerCore ranks per core: more ranks would not change
  // the slowdown. With --simulate, at most one rank per core.
  JobProfile measure() const {
    const int turns = options_.simulate.empty() ? kMaxRanksPerCore : 1;
    const int at_once =
        std::min(machine_.ranks_per_host, turns * launcher::automatic_ranks(topology_));
    const int threads = threads_of(at_once);
    say(fmt::format("paceline advise: measuring a few steps of {} with {} of {}", program_.front(),
                    counted(at_once, "rank"), counted(threads, "thread")));
    const TemporaryFolder folder;
    const std::string file = folder.path() + "/profile.json";
    LauncherRun launcher({.command = program_,
                          .num_ranks = at_once,
                          .num_threads = threads,
                          .folder = folder.path(),
                          .variables = {{"PACELINE_PROFILE", file}}},
                         signals_);
    const Deadline patience = Deadline::after(std::chrono::seconds(options_.patience));
    while (!launcher.wait(kLookForProfileEvery)) {
      if (!patience.expired()) continue;
      refuse(fmt::format("has not written one within {} s (--patience)", options_.patience));
    }
    const int code = launcher.stop();
    if (code != 0) {
      fail(ErrorCode::kInvalid, "{} failed with exit code {} while it was measured: {}",
           program_.front(), code, launcher.failure_reason());
    }
    if (!std::filesystem::exists(file)) refuse("ended without one");
    return planning::load_profile(file);
  }

  [[noreturn]] void refuse(const std::string& what) const {
    fail(ErrorCode::kInvalid,
         "no profile: {} {}. Programs that use train::TrainingRun write one to the file in the "
         "variable PACELINE_PROFILE; others can write it themselves (docs/performance.md)",
         program_.front(), what);
  }

  // Prints the memory that a job with one replica per rank needs, for each stage of sharding.
  void print_memory() {
    planning::Forecaster forecaster(profile_, machine_, global_batch_);
    std::vector<planning::Forecast> ways;
    for (const int stage : profile_.shard_stages) {
      const Way way{.replicas = machine_.world_size(), .shard_stage = stage};
      const std::string reason = why_not(way, profile_, machine_, global_batch_);
      check(reason.empty(), "--memory: {}; give --global-batch N", reason);
      if (stage > 0 && way.replicas == 1) continue;
      ways.push_back(forecaster.forecast(way));
    }
    fmt::print("\nmemory of replicas, predicted:\n{}", memory_table(ways, machine_));
  }

  void advise() {
    const Search search = search_ways(profile_, machine_, global_batch_);
    fmt::print("\n{}\n", way_table(search, profile_, static_cast<std::size_t>(options_.rows)));
    const planning::Forecast& best = search.ways.front();
    if (!best.fits) {
      fmt::print("advice: no plan fits into {} per host\n",
                 planning::memory_text(machine_.memory_bytes));
      exit_code_ = 1;
    } else {
      fmt::print("advice: {}\n", shell_line(flags(best.way)));
    }
    for (const std::string& reason : reasons_for(search)) fmt::print("because: {}\n", reason);
    if (best.fits && !program_.empty() && options_.simulate.empty())
      fmt::print("command: {}\n", command(best.way));
    if (!options_.check.empty()) try_out(search);
  }

  std::vector<std::string> flags(const Way& way) const {
    std::vector<std::string> flags = planning::flags_of(way);
    flags.insert(flags.end(), {"--global-batch-size", std::to_string(global_batch_)});
    return flags;
  }

  std::string command(const Way& way) const {
    std::vector<std::string> words = {"paceline", "run", "--nproc-per-node",
                                      std::to_string(way.num_ranks())};
    const auto program = with_flags(program_, flags(way));
    words.insert(words.end(), program.begin(), program.end());
    return shell_line(words);
  }

  // The plans to try out: the first ones, or the best one for each mesh that the option names.
  std::vector<planning::Forecast> ways_to_try(const Search& search) const {
    const std::string& text = options_.check;
    std::vector<planning::Forecast> ways;
    if (text.find('=') == std::string::npos) {
      const long count = whole_number("--check", text, 1, kMaxWaysToTry);
      for (const planning::Forecast& way : search.ways) {
        if (static_cast<long>(ways.size()) < count) ways.push_back(way);
      }
      return ways;
    }
    std::istringstream meshes(text);
    for (std::string mesh; meshes >> mesh;) ways.push_back(best_of_mesh(search, mesh));
    return ways;
  }

  static const planning::Forecast& best_of_mesh(const Search& search, const std::string& text) {
    std::map<std::string, int> sizes = {{"dp", 1}, {"tp", 1}, {"pp", 1}};
    std::vector<MeshAxis> axes;
    try {
      axes = parse_mesh(text);
    } catch (const Error& error) {
      throw UsageError(fmt::format("--check {}: {}", text, error.what()));
    }
    for (const MeshAxis& axis : axes) sizes[axis.name] = axis.size;
    const auto best =
        std::find_if(search.ways.begin(), search.ways.end(), [&](const planning::Forecast& one) {
          return one.way.replicas == sizes["dp"] && one.way.parts == sizes["tp"] &&
                 one.way.stages == sizes["pp"];
        });
    if (best == search.ways.end()) {
      throw UsageError(fmt::format(
          "--check {}: not one of the meshes for these ranks and this batch; see --rows 1000",
          text));
    }
    return *best;
  }

  void try_out(const Search& search) {
    const std::vector<planning::Forecast> ways = ways_to_try(search);
    say(fmt::format("paceline advise: trying out {}", counted(ways.size(), "way")));
    std::vector<planning::MeasuredWay> measured;
    for (const planning::Forecast& way : ways) measured.push_back(measure(way));
    fmt::print("\npredicted and measured (step; memory of all ranks):\n{}",
               measured_table(measured));
  }

  planning::MeasuredWay measure(const planning::Forecast& forecast) const {
    const TemporaryFolder folder;
    const launcher::Trial trial =
        run_trial({.command = with_flags(program_, flags(forecast.way)),
                   .combination = {machine_.ranks_per_host, threads_of(machine_.ranks_per_host)},
                   .duration = std::chrono::seconds(options_.seconds),
                   .patience = std::chrono::seconds(options_.patience),
                   .folder = folder.path()},
                  signals_);
    if (!trial.is_measured()) return {.forecast = forecast, .problem = trial.problem};
    if (trial.memory_bytes == 0) {
      return {.forecast = forecast, .problem = "it ended before its memory was measured"};
    }
    return {.forecast = forecast,
            .step_s = trial.step_seconds(),
            .host_bytes = static_cast<double>(trial.memory_bytes)};
  }

  const MeshAdviceOptions options_;
  const std::vector<std::string> program_;
  const Topology topology_;
  const Fd signals_;
  Machine machine_;
  JobProfile profile_;
  std::int64_t global_batch_ = 0;
  int exit_code_ = 0;
};

}  // namespace

int advise_mesh(const MeshAdviceOptions& options, const std::vector<std::string>& program) {
  return MeshAdviser(options, program).run();
}

}  // namespace paceline::apps
