// `paceline advise`: tries combinations of ranks and threads, or plans from a profile
// (mesh_advice.h).

#include <algorithm>
#include <optional>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "paceline/engine/core/option_text.h"
#include "paceline/launcher/placement/placement.h"
#include "paceline/launcher/process/process.h"
#include "paceline/launcher/process/program_file.h"
#include "paceline/planning/forecast/machine.h"

#include "apps/advise/mesh_advice.h"
#include "apps/advise/trial.h"
#include "apps/cli/command_line.h"
#include "apps/cli/commands.h"
#include "apps/cli/option_table.h"
#include "apps/cli/option_value.h"

namespace paceline::apps {

namespace {

constexpr int kNothingMeasured = 1;
constexpr const char* kBatchPlaceholder = "{batch}";
constexpr long kMaxSecondsOfAdvice = 3600;
constexpr long kMaxRows = 1000;

constexpr const char* kHelp = R"(
PROGRAM must report its steps: DistributedDataParallel and paceline's training loop do, other programs by
paceline::StepLog or a line of JSON for each step (docs/performance.md). With --mesh and --memory it must
write a profile of its layers: train::TrainingRun does (docs/performance.md).

Examples:
  paceline advise -- ./train
  paceline advise --global-batch 64 -- ./train --batch-size {batch}
  paceline advise --mesh --check 4 -- train_gpt --global-batch-size 32
  paceline advise --memory --ranks 8 -- train_gpt --layers 12 --width 768
  paceline advise --mesh --simulate hosts=64,ranks=8,link=100Gbit --global-batch 4096 -- train_gpt)";

struct AdviseOptions {
  long seconds = 5, patience = 60;
  long global_batch = 0;  // 0: not given
};

std::vector<std::string> with_batch(std::vector<std::string> command,
                                    std::optional<std::int64_t> batch) {
  for (std::string& word : command) {
    for (std::size_t at; batch && (at = word.find(kBatchPlaceholder)) != std::string::npos;) {
      word.replace(at, std::string_view(kBatchPlaceholder).size(), std::to_string(*batch));
    }
  }
  return command;
}

bool mentions_batch(const std::vector<std::string>& command) {
  return std::any_of(command.begin(), command.end(), [](const std::string& word) {
    return word.find(kBatchPlaceholder) != std::string::npos;
  });
}

class Adviser {
 public:
  Adviser(const AdviseOptions& options, std::vector<std::string> program)
      : program_(std::move(program)),
        topology_(discover_topology()),
        duration_(std::chrono::seconds(options.seconds)),
        patience_(std::chrono::seconds(options.patience)) {
    if (program_.empty())
      throw UsageError("no program given: paceline advise [options] -- PROGRAM");
    launcher::find_program(program_.front());
    if (options.global_batch > 0) global_batch_ = options.global_batch;
    if (global_batch_.has_value() != mentions_batch(program_)) {
      throw UsageError(
          "--global-batch N and {batch} in the program's arguments belong together: {batch} is "
          "replaced by each rank's batch, N / ranks");
    }
  }

  int run() {
    const auto combinations = launcher::sensible_combinations(topology_, global_batch_);
    say(fmt::format("paceline advise: {} combinations, about {} s each", combinations.size(),
                    std::chrono::duration_cast<std::chrono::seconds>(duration_).count() + 3));
    const Fd signals = block_ending_signals();
    for (const launcher::Combination& combination : combinations) {
      trials_.push_back(try_one(combination, signals));
    }
    const launcher::Advice advice = launcher::conclude(trials_, usable_memory());
    fmt::print("{}", launcher::trial_table(trials_, advice));
    if (!advice.answer.empty()) fmt::print("\nadvice: {}\n", advice.answer);
    for (const std::string& reason : advice.reasons) fmt::print("because: {}\n", reason);
    if (!advice.best) {
      say("paceline advise: nothing could be measured, so there is no command to recommend");
      return kNothingMeasured;
    }
    fmt::print("command: {}\n", recommended_command(*advice.best));
    return 0;
  }

 private:
  std::optional<std::int64_t> batch_of(const launcher::Combination& combination) const {
    if (!global_batch_) return {};
    return *global_batch_ / combination.num_ranks;
  }

  launcher::Trial try_one(const launcher::Combination& combination, const Fd& signals) const {
    const TemporaryFolder folder;
    return run_trial({.command = with_batch(program_, batch_of(combination)),
                      .combination = combination,
                      .duration = duration_,
                      .patience = patience_,
                      .folder = folder.path()},
                     signals);
  }

  std::string recommended_command(const launcher::Combination& best) const {
    std::vector<std::string> command = {"paceline", "run", "--nproc-per-node",
                                        std::to_string(best.num_ranks)};
    const auto natural = launcher::plan_placement(topology_, {.num_local_ranks = best.num_ranks});
    if (natural.ranks.front().num_threads != best.num_threads) {
      command.insert(command.end(), {"--threads-per-rank", std::to_string(best.num_threads)});
    }
    const auto program = with_batch(program_, batch_of(best));
    command.insert(command.end(), program.begin(), program.end());
    return shell_line(command);
  }

  const std::vector<std::string> program_;
  const Topology topology_;
  const std::chrono::nanoseconds duration_, patience_;
  std::optional<std::int64_t> global_batch_;
  std::vector<launcher::Trial> trials_;
};

}  // namespace

int advise_command(const Arguments& arguments) {
  CLI::App app(
      "Runs PROGRAM for a few seconds with each sensible number of ranks and threads on this "
      "machine, and recommends the best. With --mesh or --memory: plans how to divide its model.",
      "paceline advise");
  app.footer(kHelp);
  set_usage(app, "Usage: paceline advise [options] -- PROGRAM [arguments]\n");
  AdviseOptions options;
  OptionTable table(app, /*has_variables=*/false);
  table.value("--seconds", "S", "Seconds to measure each combination after the warm-up",
              number_target(options.seconds, 1, kMaxSecondsOfAdvice));
  table.value("--patience", "S", "Seconds to wait for a step before giving up",
              number_target(options.patience, 1, kMaxSecondsOfAdvice));
  table.value("--global-batch", "N",
              "Samples of all ranks in a step: {batch} in the arguments becomes N / ranks",
              number_target(options.global_batch, 1, 1L << 40));
  MeshAdviceOptions mesh;
  table.group("Plans");
  table.flag("--mesh", "Plan how to divide the model and its batches",
             bool_target(mesh.plans_meshes));
  table.flag("--memory", "Plan the memory of replicas in each stage of sharding",
             bool_target(mesh.memory));
  table.value("--simulate", "MACHINE",
              "Plan for the described machines: "
              "hosts=64,ranks=8,link=100Gbit,latency=5us,cores=64,memory=512GB,mtbf=5000h,"
              "checkpoint=30s,restart=2min,interval=1h,stragglers=5%",
              text_target(mesh.simulate));
  table.value("--ranks", "N", "Ranks on this machine to plan for [one per core]",
              number_target(mesh.ranks, 1, planning::kMaxPlannedRanks));
  table.value("--rows", "N", "Plans to print", number_target(mesh.rows, 1, kMaxRows));
  table.value("--check", "WAYS", "Plans to try out: their number, or meshes as 'dp=2 pp=2'",
              text_target(mesh.check));
  table.value("--profile", "FILE", "Profile to plan from; it is measured if FILE does not exist",
              text_target(mesh.profile));
  const CommandLine line = split_command_line(app, arguments);
  if (!table.take(line)) return 0;
  table.read();
  mesh.global_batch = options.global_batch;
  mesh.seconds = options.seconds;
  mesh.patience = options.patience;
  try {
    if (mesh.is_asked_for()) return advise_mesh(mesh, line.program);
    if (!mesh.simulate.empty() || !mesh.check.empty() || mesh.ranks > 0 || !mesh.profile.empty()) {
      throw UsageError("--simulate, --ranks, --check and --profile need --mesh or --memory");
    }
    return Adviser(options, line.program).run();
  } catch (const Interrupted& interrupted) {
    launcher::end_by_signal(interrupted.signal);
  }
}

}  // namespace paceline::apps
