// `paceline submit slurm|kubernetes`: one job from the flags of `paceline run`, for a scheduler.

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/core/bytes.h"
#include "paceline/core/error.h"
#include "paceline/core/exit_code.h"
#include "paceline/core/fd.h"
#include "paceline/core/io.h"
#include "paceline/core/secret.h"
#include "paceline/process/program.h"

#include "apps/command_line.h"
#include "apps/commands.h"
#include "apps/flag_file.h"
#include "apps/hosts_options.h"
#include "apps/own_program.h"
#include "apps/run_options.h"
#include "apps/submit_script.h"
#include "apps/usage_error.h"
#include "apps/working_directory.h"

namespace paceline::apps {
namespace {

constexpr const char* kSubmitExamples = R"(
The options of paceline run that choose ranks, output and stopping are passed on to it.

Examples:
  paceline submit slurm --nnodes 2 --nproc-per-node 4 --threads-per-rank 8 --time 4:00:00 ./train
  paceline submit slurm --dry-run --array 0-9 --nproc-per-node 4 ./train
  paceline submit kubernetes --dry-run --image registry/train:1 --nnodes 2 ./train)";

// Options of paceline run that the scheduler decides, or that have no meaning in a job that waits.
constexpr std::array<std::string_view, 13> kNotHere = {
    "--hosts",         "--hostfile",   "--ssh-command",  "--export",      "--host-retries",
    "--start-timeout", "--standalone", "--node-rank",    "--master-addr", "--report-bindings",
    "--print-config",  "--rdzv-id",    "--rdzv-endpoint"};

constexpr const char* kNoKill =
    ". A job that goes on without a node that fails needs an allocation that SLURM leaves "
    "standing: "
    "sbatch or salloc --no-kill -N MAX, and in it paceline run --nnodes MIN:MAX";

struct SubmitTexts {
  RunTexts run;
  std::string job_name, mem, time, partition, account, qos, constraint, reservation, array, output;
  std::string signal_before, image, name_space, shared_memory, run_as_user;
  bool no_requeue = false;
};

// Known, so that it can be refused with the reason.
void hide(CLI::App& app, const std::string& name) { app.get_option(name)->group("")->envname(""); }

void refuse_hidden(const CLI::App& app, const CommandLine& line) {
  for (const CLI::Option* option : app.get_options()) {
    const std::string name = "--" + option->get_lnames().front();
    const bool in_file = std::any_of(line.defaults.begin(), line.defaults.end(),
                                     [&](const auto& one) { return one.name == name; });
    if (!option->get_group().empty() || (!line.has(name) && !in_file)) continue;
    throw UsageError(fmt::format(
        "{} is for paceline run: a submitted job gets its nodes from the scheduler, --nnodes says "
        "how many",
        source_of(name, line)));
  }
}

void declare_submit_options(CLI::App& app, SubmitTexts& texts, bool kubernetes) {
  declare_run_options(app, texts.run);
  for (const std::string_view name : kNotHere) hide(app, std::string(name));
  app.get_option("--nnodes")->type_name("N")->description("Machines of the job");
  if (kubernetes) {
    app.get_option("--remote-paceline")->description("Where paceline is in the image [in PATH]");
  } else {
    hide(app, "--master-port");
  }
  const auto value = [&](const char* name, std::string& target, const char* type,
                         const char* text) {
    app.add_option(name, target, text)
        ->envname(variable_of(name))
        ->type_name(type)
        ->group(kJobGroup);
  };
  value("--job-name", texts.job_name, "NAME", "Name of the job [paceline]");
  value("--mem", texts.mem, "AMOUNT", "Memory of a node");
  if (kubernetes) {
    value("--image", texts.image, "IMAGE", "What to start");
    value("--namespace", texts.name_space, "NAME", "Where");
    value("--shared-memory", texts.shared_memory, "AMOUNT", "Size of /dev/shm [1Gi]");
    value("--run-as-user", texts.run_as_user, "UID", "Run as this user [the image's]");
    return;
  }
  value("--time", texts.time, "LIMIT", "Longest time: 4:00:00");
  value("--partition", texts.partition, "NAME", "Where to run");
  value("--account", texts.account, "NAME", "Who pays");
  value("--qos", texts.qos, "NAME", "Quality of service");
  value("--constraint", texts.constraint, "LIST", "Features of the nodes");
  value("--reservation", texts.reservation, "NAME", "Reserved nodes");
  value("--array", texts.array, "SPEC", "Several such jobs: 0-9%2");
  value("--output", texts.output, "FILE", "Of the batch script [slurm-%j.out]");
  value("--signal-before", texts.signal_before, "S",
        "Seconds before the end of the time at which ranks are asked to stop [120]; 0: never");
  app.add_flag("--no-requeue", texts.no_requeue, "Do not queue a job again that stopped as agreed")
      ->envname("PET_NO_REQUEUE")
      ->group(kJobGroup);
}

int count_or(const CommandLine& line, const std::string& flag, const std::string& text,
             int fallback, int min, int max) {
  return text.empty() ? fallback : static_cast<int>(check_integer(line, flag, text, min, max));
}

SubmitRequest check_common(const CLI::App& app, const SubmitTexts& texts, const CommandLine& line,
                           bool kubernetes) {
  SubmitRequest request;
  const RunTexts& run = texts.run;
  if (!texts.job_name.empty()) request.job_name = texts.job_name;
  if (run.nnodes.find(':') != std::string::npos) {
    throw UsageError(
        fmt::format("{}: '{}': a scheduler gives a job a fixed number of nodes: --nnodes N{}",
                    source_of("--nnodes", line), run.nnodes, kubernetes ? "" : kNoKill));
  }
  request.num_nodes = count_or(line, "--nnodes", run.nnodes, 1, 1, launch::kMaxHosts);
  request.ranks_per_node =
      count_or(line, "--nproc-per-node", run.nproc_per_node, 1, 1, launch::kMaxSlots);
  request.cores_per_rank = count_or(line, "--threads-per-rank", run.threads_per_rank, 1, 1, 4096);
  request.memory = texts.mem;
  request.paceline = run.remote_paceline;
  request.run_options = passed_on(app);
  request.command = line.program;
  if (request.command.empty()) {
    throw UsageError(
        fmt::format("no program given: {} [options] PROGRAM [arguments]", app.get_name()));
  }
  return request;
}

SlurmRequest check_slurm(const SubmitTexts& texts, const CommandLine& line) {
  require_working_directory();
  return {.time = texts.time,
          .partition = texts.partition,
          .account = texts.account,
          .qos = texts.qos,
          .constraint = texts.constraint,
          .reservation = texts.reservation,
          .array = texts.array,
          .output = texts.output,
          .directory = std::filesystem::current_path().string(),
          .signal_seconds = count_or(line, "--signal-before", texts.signal_before, 120, 0, 65535),
          .requeue = !texts.no_requeue};
}

// sbatch reads the script from its stdin and says the number of the job.
int hand_to_sbatch(const std::string& script) {
  const char* path = std::getenv("PATH");
  const std::string sbatch = launch::find_program("sbatch", path != nullptr ? path : "");
  int ends[2];
  if (pipe(ends) != 0) throw system_error("making a pipe to sbatch");
  Fd from(ends[0]), to(ends[1]);
  const pid_t pid = fork();
  if (pid < 0) throw system_error("starting sbatch");
  if (pid == 0) {
    dup2(from.get(), STDIN_FILENO);
    to.reset();
    execl(sbatch.c_str(), "sbatch", nullptr);
    _exit(kExitNotExecutable);
  }
  from.reset();
  write_whole(to.get(), as_bytes(script));  // sbatch says why it does not read it
  to.reset();
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int submit(const std::string& where, const Arguments& arguments) {
  const bool kubernetes = where == "kubernetes";
  CLI::App app("Writes a job for a scheduler from the flags of paceline run.",
               "paceline submit " + where);
  app.footer(kSubmitExamples);
  app.get_formatter()->column_width(34);
  SubmitTexts texts;
  declare_submit_options(app, texts, kubernetes);
  CommandLine line = split_command_line(app, arguments);
  read_flag_file(app, "submit", line);
  if (!take_options(app, line)) {
    fmt::print("{}", app.help());
    return 0;
  }
  refuse_hidden(app, line);
  SubmitRequest request = check_common(app, texts, line, kubernetes);
  if (request.paceline.empty()) request.paceline = kubernetes ? "paceline" : own_program();
  if (!kubernetes) {
    const std::string script = slurm_script(request, check_slurm(texts, line));
    if (!texts.run.dry_run) return hand_to_sbatch(script);
    fmt::print("{}", script);
    return 0;
  }
  if (!texts.run.dry_run) {
    throw UsageError("give --dry-run, and the output to: kubectl apply -f -");
  }
  KubernetesRequest job{
      .image = texts.image, .name_space = texts.name_space, .secret = random_hex(Secret::kSize)};
  if (!texts.shared_memory.empty()) job.shared_memory = texts.shared_memory;
  job.user = count_or(line, "--run-as-user", texts.run_as_user, -1, 0, 2147483647);
  job.port = static_cast<std::uint16_t>(
      count_or(line, "--master-port", texts.run.master_port, 29500, 1, 65534));
  fmt::print("{}", kubernetes_manifests(request, job));
  return 0;
}

}  // namespace

int submit_command(const Arguments& arguments) {
  const std::string where = arguments.empty() ? "" : arguments.front();
  if (where == "--help" || where == "-h") {
    submit("slurm", {"--help"});
    fmt::print("\n");
    submit("kubernetes", {"--help"});
    return 0;
  }
  if (where != "slurm" && where != "kubernetes") {
    throw UsageError("say to whom: paceline submit slurm or paceline submit kubernetes");
  }
  return submit(where, {arguments.begin() + 1, arguments.end()});
}

}  // namespace paceline::apps
