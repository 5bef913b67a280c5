// `paceline submit slurm|kubernetes`: makes a job for a scheduler from the flags of `paceline run`.

#include <cerrno>
#include <filesystem>
#include <optional>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/launcher/hosts/host_list.h"
#include "paceline/launcher/process/process.h"
#include "paceline/launcher/process/program_file.h"

#include "apps/cli/command_line.h"
#include "apps/cli/commands.h"
#include "apps/cli/flag_file.h"
#include "apps/cli/option_value.h"
#include "apps/cli/own_program.h"
#include "apps/run/rank_options.h"
#include "apps/run/run_options.h"
#include "apps/submit/submit_script.h"

namespace paceline::apps {

namespace {

constexpr const char* kSubmitExamples = R"(
The options of paceline run that choose ranks, output and stopping are passed on to it.

Examples:
  paceline submit slurm --nnodes 2 --nproc-per-node 4 --threads-per-rank 8 --time 4:00:00 ./train
  paceline submit slurm --dry-run --array 0-9 --nproc-per-node 4 ./train
  paceline submit kubernetes --dry-run --image registry/train:1 --nnodes 2 ./train)";

constexpr const char* kNoKill =
    ". To let a job continue after a node fails, use an allocation that SLURM does not cancel: "
    "sbatch or salloc --no-kill -N MAX, and start paceline run --nnodes MIN:MAX in it";

// Removes an option from the help. The option stays declared, so that it can be refused with a
// reason.
void hide(const Option& option) { option.declared->group("")->envname(""); }

void refuse_hidden(const OptionTable& table) {
  for (const Option& option : table.options()) {
    if (!option.given() || !option.declared->get_group().empty()) continue;
    throw UsageError(
        fmt::format("{} is for paceline run: a submitted job gets its nodes from the scheduler, "
                    "and --nnodes sets their number",
                    option.source));
  }
}

// Adapts the options of paceline run: the scheduler decides some of them, and others have a
// different form.
void adapt_run_options(OptionTable& table, SubmitRequest& request, KubernetesRequest& kubernetes,
                       bool for_kubernetes) {
  for (const Option& option : table.options()) {
    if ((option.traits & kNotSubmitted) != 0) hide(option);
  }
  table["--nnodes"].declared->type_name("N")->description("Machines of the job");
  table.retarget("--nnodes", {.read = [&request, for_kubernetes](const Option& option) {
                   if (option.text.find(':') != std::string::npos) {
                     throw UsageError(fmt::format(
                         "{}: '{}': a scheduler gives a job a fixed number of nodes: --nnodes N{}",
                         option.source, option.text, for_kubernetes ? "" : kNoKill));
                   }
                   request.num_nodes = static_cast<int>(option.number(1, launcher::kMaxHosts));
                 }});
  table.retarget("--nproc-per-node", number_target(request.ranks_per_node, 1, launcher::kMaxSlots));
  table.retarget("--threads-per-rank", number_target(request.cores_per_rank, 1, kMaxThreads));
  table.retarget("--remote-paceline", text_target(request.paceline));
  if (for_kubernetes) {
    table["--remote-paceline"].declared->description("Path of paceline in the image [in PATH]");
    table.retarget("--master-port", number_target(kubernetes.port, 1, 65534));
  } else {
    hide(table["--master-port"]);
  }
}

void declare_job_options(OptionTable& table, SubmitRequest& request, SlurmRequest& slurm,
                         KubernetesRequest& kubernetes, bool for_kubernetes) {
  table.group("Job");
  // Removes CLI11's default texts, because the help texts contain the defaults.
  const auto value = [&](const char* name, const char* type, const char* text,
                         OptionTarget target) {
    table.value(name, type, text, std::move(target), kDecidedHere).declared->default_str("");
  };
  value("--job-name", "NAME", "Name of the job [paceline]", text_target(request.job_name));
  value("--mem", "AMOUNT", "Memory of a node", text_target(request.memory));
  if (for_kubernetes) {
    value("--image", "IMAGE", "Container image to start", text_target(kubernetes.image));
    value("--namespace", "NAME", "Namespace of the job", text_target(kubernetes.name_space));
    value("--shared-memory", "AMOUNT", "Size of /dev/shm [1Gi]",
          text_target(kubernetes.shared_memory));
    value("--run-as-user", "UID", "Run as this user [the image's]",
          number_target(kubernetes.user, 0, 2147483647));
    return;
  }
  value("--time", "LIMIT", "Time limit: 4:00:00", text_target(slurm.time));
  value("--partition", "NAME", "Partition to run in", text_target(slurm.partition));
  value("--account", "NAME", "Account to charge", text_target(slurm.account));
  value("--qos", "NAME", "Quality of service", text_target(slurm.qos));
  value("--constraint", "LIST", "Features of the nodes", text_target(slurm.constraint));
  value("--reservation", "NAME", "Reserved nodes", text_target(slurm.reservation));
  value("--array", "SPEC", "Task numbers of a job array: 0-9%2", text_target(slurm.array));
  value("--output", "FILE", "Output of the batch script [slurm-%j.out]", text_target(slurm.output));
  value("--signal-before", "S",
        "Seconds before the time limit at which ranks are asked to stop [120]; 0: never",
        number_target(slurm.signal_seconds, 0, 65535));
  table.flag("--no-requeue", "Do not requeue a job after an agreed stop",
             bool_target(slurm.no_requeue), kDecidedHere);
}

// Submits the script. sbatch reads it from its stdin and prints the number of the job.
int hand_to_sbatch(const std::string& script) {
  const std::string sbatch = launcher::find_program("sbatch");
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw system_error("making a pipe to sbatch");
  Fd from(ends[0]), to(ends[1]);
  const pid_t pid = launcher::start_process({.path = sbatch,
                                             .command = {"sbatch"},
                                             .environment = launcher::inherited_environment(),
                                             .stdin_fd = from.get()})
                        .pid;
  from.reset();
  write_whole(to.get(), as_bytes(script));  // if sbatch does not read the script, it prints why
  to.reset();
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void settle_ranks(const OptionTable& table, launcher::LaunchOptions& launch,
                  SubmitRequest& request) {
  launch.min_nodes = launch.num_nodes = request.num_nodes;
  const bool is_given = table["--nproc-per-node"].given();
  check_roles(table, launch,
              is_given ? std::optional(request.num_nodes * request.ranks_per_node) : std::nullopt);
  if (!launch.roles.empty() && !is_given) request.ranks_per_node = launch.num_local_ranks;
}

int submit(const std::string& where, const Arguments& arguments) {
  const bool kubernetes = where == "kubernetes";
  CLI::App app("Writes a job for a scheduler from the flags of paceline run.",
               "paceline submit " + where);
  app.footer(kSubmitExamples);
  app.get_formatter()->column_width(34);
  OptionTable table(app, /*has_variables=*/true);
  RunOptions run;
  SubmitRequest request;
  SlurmRequest slurm;
  KubernetesRequest job;
  declare_run_options(table, run);
  adapt_run_options(table, request, job, kubernetes);
  declare_job_options(table, request, slurm, job, kubernetes);
  CommandLine line = split_command_line(app, arguments);
  read_flag_file(app, "submit", line);
  if (!table.take(line)) return 0;
  refuse_hidden(table);
  table.read();
  settle_ranks(table, run.launch, request);
  request.run_options = table.passed_on();
  request.command = line.program;
  if (request.command.empty()) {
    throw UsageError(
        fmt::format("no program given: {} [options] PROGRAM [arguments]", app.get_name()));
  }
  if (request.paceline.empty()) request.paceline = kubernetes ? "paceline" : own_program();
  if (!kubernetes) {
    require_working_directory();
    slurm.directory = std::filesystem::current_path().string();
    const std::string script = slurm_script(request, slurm);
    if (!run.dry_run) return hand_to_sbatch(script);
    fmt::print("{}", script);
    return 0;
  }
  if (!run.dry_run) throw UsageError("give --dry-run, and pass the output to: kubectl apply -f -");
  job.secret = random_hex(Secret::kSize);
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
    throw UsageError("choose a scheduler: paceline submit slurm or paceline submit kubernetes");
  }
  return submit(where, {arguments.begin() + 1, arguments.end()});
}

}  // namespace paceline::apps
