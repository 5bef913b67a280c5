// `paceline gpu-check`: checks on a machine with GPUs everything that Paceline does with CUDA
// tensors, and writes one report.

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/launcher/process/process.h"

#include "apps/advise/trial.h"
#include "apps/cli/commands.h"
#include "apps/cli/option_table.h"
#include "apps/cli/own_program.h"
#include "apps/doctor/gpu_findings.h"
#include "apps/gpu_check/check_report.h"
#include "apps/gpu_check/check_runs.h"
#include "apps/gpu_check/machine_facts.h"

namespace paceline::gpu_check {
namespace {

using namespace apps;
using namespace std::chrono_literals;

constexpr auto kTimeLimit = 10min;
constexpr int kMaxCheckRanks = 16;
constexpr int kUsualRanks = 8;
constexpr const char* kRankProgram = "paceline_gpu_check";
constexpr const char* kGpuCheckHelp = R"(
Prints a line for each check: pass, fail (with the reason and, if it is known, the cure) or
skipped (with the reason). Checks named nccl/ run one rank per GPU over NCCL. Checks named host/
run ranks that copy through host memory and may share a GPU. The command takes about ten minutes
at most and needs no network. The report has the versions, the GPUs, the settings and all figures,
and nothing secret.

Exit code 0 if nothing failed, 1 if a check failed, 3 if nothing can be checked: no GPU was found,
or Paceline was built without LibTorch, or with a LibTorch without CUDA.

Examples:
  paceline gpu-check
  paceline gpu-check --quick --report check.json
  paceline gpu-check --only nccl/bandwidth,host/order)";

struct CheckOptions {
  std::string report = "paceline-gpu-check.json";
  std::string only, program;
  long num_ranks = 0, limit = 0;
  bool is_quick = false;
};

// Thrown if nothing can be checked; the reason is printed as one line.
struct NothingToCheck {
  std::string text;
};

bool is_wanted(const std::vector<std::string>& only, Setups setup, std::string_view name) {
  if (only.empty()) return true;
  const std::string full = fmt::format("{}/{}", name_of(setup), name);
  return std::ranges::any_of(only, [&](const std::string& item) {
    return item == full || item == name || item == name_of(setup);
  });
}

std::vector<std::string> items_of_only(const std::string& text) {
  if (text.empty()) return {};
  std::vector<std::string> known = {"nccl", "host"};
  for (const CheckSpec& check : kChecks) {
    known.emplace_back(check.name);
    for (const Setups setup : {kNccl, kHost}) {
      if ((check.setups & setup) != 0)
        known.push_back(fmt::format("{}/{}", name_of(setup), check.name));
    }
  }
  auto items = items_of(text);
  for (const std::string& item : items) {
    if (std::ranges::find(known, item) == known.end())
      refuse_value("--only", item, one_of(known, item));
  }
  return items;
}

class GpuCheck {
 public:
  explicit GpuCheck(const CheckOptions& options)
      : options_(options), only_(items_of_only(options.only)), machine_(gpu_machine_here()) {}

  int run() {
    require_gpu();
    program_path_ = find_program();
    program_ = ask_program(program_path_);
    require_program();
    fmt::print("{}, LibTorch {}, {}\n\n", counted(program_.devices.size(), "GPU"),
               program_.libtorch, machine_.runtime_text);
    const Fd signals = block_ending_signals();
    try {
      check_all(signals);
    } catch (const Interrupted& interrupted) {
      finish();
      launcher::end_by_signal(interrupted.signal);
    }
    finish();
    return any_failed(outcomes_) ? kCheckFailed : 0;
  }

 private:
  void require_gpu() const {
    if (machine_.num_visible > 0) return;
    if (!machine_.runtime_error.empty())
      throw NothingToCheck{"no GPU can be used: " + machine_.runtime_error};
    throw NothingToCheck{
        "no NVIDIA GPU was found; in a container: docker run --gpus all. ctest checks everything "
        "that needs no GPU"};
  }

  std::string find_program() const {
    if (!options_.program.empty()) return std::filesystem::absolute(options_.program);
    if (!built_with_libtorch()) {
      throw NothingToCheck{
          "this build of Paceline has no LibTorch; build it with one for CUDA "
          "(-DPACELINE_LIBTORCH_WHEEL=...), or give the ranks' program of such a build: --program"};
    }
    return contestants_folder() + "/" + kRankProgram;
  }

  void require_program() const {
    if (!program_.error.empty()) throw NothingToCheck{program_.error};
    if (!program_.knows_cuda) {
      throw NothingToCheck{fmt::format(
          "LibTorch {} of this build {}; build Paceline with a LibTorch for CUDA: "
          "cmake -DPACELINE_LIBTORCH_WHEEL=$(python3 -c 'import torch; print(*torch.__path__)')",
          program_.libtorch,
          program_.cuda_error.empty() ? "was built without CUDA" : program_.cuda_error)};
    }
    if (!program_.cuda_error.empty() || program_.devices.empty()) {
      throw NothingToCheck{
          fmt::format("LibTorch {} sees no GPU: {}", program_.libtorch, program_.cuda_error)};
    }
  }

  void check_all(const Fd& signals) {
    if (only_.empty()) {
      for (const CheckOutcome& outcome : outcomes_of(gpu_findings(machine_))) add(outcome);
    }
    check_nccl(signals);
    const int usual = std::clamp(static_cast<int>(program_.devices.size()), 2, kUsualRanks);
    const int num_ranks = options_.num_ranks > 0 ? static_cast<int>(options_.num_ranks) : usual;
    run_setup(kHost, num_ranks, signals);
    if (only_.empty()) add(check_memory_returned(program_path_, program_));
  }

  void check_nccl(const Fd& signals) {
    const int num_gpus = static_cast<int>(program_.devices.size());
    const int num_ranks = options_.num_ranks > 0
                              ? std::min(num_gpus, static_cast<int>(options_.num_ranks))
                              : num_gpus;
    if (!machine_.nccl_error.empty()) {
      return leave_out(
          kNccl, [](const CheckSpec&) { return true; }, machine_.nccl_error);
    }
    if (num_ranks < 2) {
      leave_out(
          kNccl, [](const CheckSpec& check) { return check.is_fault; },
          "one GPU: NCCL needs a GPU for each rank, and this check needs two ranks");
    }
    run_setup(kNccl, num_ranks, signals);
    if (only_.empty()) add(run_nccl_tests(num_ranks));
  }

  void leave_out(Setups setup, const std::function<bool(const CheckSpec&)>& which,
                 const std::string& why) {
    for (const CheckSpec& check : kChecks) {
      if ((check.setups & setup) == 0 || !which(check) || !is_wanted(only_, setup, check.name))
        continue;
      add({.name = fmt::format("{}/{}", name_of(setup), check.name),
           .what = std::string(check.what),
           .verdict = Verdict::kNotHere,
           .text = why});
    }
  }

  RunOptions run_options(Setups setup, int num_ranks) const {
    const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
    return {.program = program_path_,
            .setup = setup,
            .num_ranks = num_ranks,
            .num_threads = std::max(1, static_cast<int>(cores) / num_ranks),
            .is_quick = options_.is_quick,
            .limit = std::chrono::seconds(options_.limit),
            .total = total_};
  }

  void run_setup(Setups setup, int num_ranks, const Fd& signals) {
    std::vector<CheckSpec> checks;
    for (const CheckSpec& check : kChecks) {
      const bool can_run = setup == kHost || num_ranks > 1 || !check.is_fault;
      if ((check.setups & setup) != 0 && can_run && is_wanted(only_, setup, check.name))
        checks.push_back(check);
    }
    if (checks.empty()) return;
    const auto tell = [&](const CheckOutcome& outcome) { add(outcome); };
    const auto outcomes = run_checks(run_options(setup, num_ranks), checks, signals, tell);
    const bool no_collectives = std::ranges::any_of(outcomes, [](const CheckOutcome& outcome) {
      return outcome.name == "nccl/collectives" && outcome.verdict == Verdict::kFail;
    });
    if (no_collectives && num_ranks > 1) look_for_cure(num_ranks, signals);
  }

  // Runs the collectives again, each time without one of the data paths that are most often at
  // fault.
  void look_for_cure(int num_ranks, const Fd& signals) {
    for (const char* name : {"NCCL_P2P_DISABLE=1", "NCCL_NVLS_ENABLE=0", "NCCL_SHM_DISABLE=1"}) {
      const std::string setting = name;
      RunOptions options = run_options(kNccl, num_ranks);
      const auto equals = setting.find('=');
      options.variables = {{setting.substr(0, equals), setting.substr(equals + 1)}};
      const auto outcomes =
          run_checks(options, {kChecks.front()}, signals, [](const CheckOutcome& /*outcome*/) {});
      const bool passes = !any_failed(outcomes);
      if (!passes && total_.expired()) return;
      add({.name = "nccl/with_" + setting.substr(0, equals),
           .what = "collectives again, with " + setting,
           .verdict = passes ? Verdict::kPass : Verdict::kNotHere,
           .text = passes ? "the collectives pass with " + setting
                          : "no cure: the collectives also fail with " + setting,
           .advice = passes ? "set " + setting + " until the cause is repaired" : ""});
      if (passes) return;
    }
  }

  void add(const CheckOutcome& outcome) {
    fmt::print("{}\n", text_of(outcome));
    std::fflush(stdout);
    outcomes_.push_back(outcome);
  }

  void finish() const {
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin_;
    write_report(options_.report, report_text(facts_text(machine_, program_, program_path_),
                                              outcomes_, time.count()));
    fmt::print("\n{} in {:.0f} s; the report is in {}\n", summary_of(outcomes_), time.count(),
               options_.report);
  }

  const CheckOptions& options_;
  const std::vector<std::string> only_;
  const GpuMachine machine_;
  const Deadline total_ = Deadline::after(kTimeLimit);
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::string program_path_;
  ProgramFacts program_;
  std::vector<CheckOutcome> outcomes_;
};

}  // namespace
}  // namespace paceline::gpu_check

namespace paceline::apps {

int gpu_check_command(const Arguments& arguments) {
  CLI::App app(
      "Checks on this machine's GPUs everything that Paceline does with CUDA tensors, and writes "
      "one report.",
      "paceline gpu-check");
  app.footer(gpu_check::kGpuCheckHelp);
  gpu_check::CheckOptions options;
  OptionTable table(app, /*has_variables=*/false);
  table.value("--report", "FILE", "File for the report, JSON", text_target(options.report));
  table.value("--nproc", "N", "Ranks to start [one per GPU, at least 2 for host/]",
              number_target(options.num_ranks, 2, gpu_check::kMaxCheckRanks));
  table.flag("--quick", "Small sizes and few repetitions", bool_target(options.is_quick));
  table.value("--only", "LIST", "Only these checks or groups: nccl, host/order, ...",
              text_target(options.only));
  table.value("--limit", "S", "Seconds for each check [20 to 120]",
              number_target(options.limit, 1, 600));
  table.value("--program", "FILE", "The ranks' program of another build of Paceline",
              text_target(options.program));
  if (!table.read_line(arguments, 0)) return 0;
  try {
    return gpu_check::GpuCheck(options).run();
  } catch (const gpu_check::NothingToCheck& nothing) {
    say("paceline gpu-check: " + nothing.text);
    return kExitEnvironment;
  }
}

}  // namespace paceline::apps
