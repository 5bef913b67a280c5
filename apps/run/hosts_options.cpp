#include "apps/run/hosts_options.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <numeric>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/option_text.h"
#include "paceline/engine/rendezvous/launch_environment.h"
#include "paceline/launcher/hosts/host_list.h"
#include "paceline/launcher/process/process.h"
#include "paceline/launcher/process/program_file.h"

#include "apps/cli/option_value.h"
#include "apps/cli/own_program.h"

namespace paceline::apps {

namespace {

// Refuses a size above 1: it means that another launcher has started this one once for each task.
void refuse_copies(const GetVariable& variable, const std::string& name, const char* launcher) {
  const auto size = read_number(variable, name);
  if (!size || *size <= 1) return;
  throw UsageError(fmt::format(
      "{0} has started {1} copies of this launcher ({2}={1}), and each would start a job of "
      "its own; start the program itself with {0}, or this launcher once, without {0}; or give "
      "--nnodes and --rdzv-endpoint",
      launcher, *size, name));
}

// Refuses a SLURM job with several components: each has variables of its own, and only srun can
// start processes on all of them.
void refuse_components(const GetVariable& variable) {
  const auto size = read_number(variable, "SLURM_HET_SIZE");
  if (!size || *size <= 1) return;
  throw UsageError(
      fmt::format("this SLURM job has {0} components (SLURM_HET_SIZE={0}), on which paceline run "
                  "does not start ranks; start the program itself: srun --het-group=0-{1} PROGRAM; "
                  "or give --standalone for ranks on this machine alone",
                  *size, *size - 1));
}

// The number of ranks for each node: the number of its tasks in the SLURM job; 0 for all if
// SLURM_TASKS_PER_NODE is not set or the user has given a number.
std::vector<int> tasks_of(const std::vector<std::string>& nodes, const Option& ranks,
                          const GetVariable& variable) {
  const bool is_given =
      ranks.given() && ranks.text.find_first_not_of("0123456789") == ranks.text.npos;
  const auto text = variable("SLURM_TASKS_PER_NODE");
  if (is_given || !text) return std::vector<int>(nodes.size(), 0);
  const auto counts = expand_task_counts(*text);
  check(counts && counts->size() == nodes.size(),
        "SLURM_TASKS_PER_NODE='{}' does not fit the job's {} nodes (SLURM_JOB_NODELIST); give the "
        "number of ranks on each node: --nproc-per-node N",
        *text, nodes.size());
  return *counts;
}

// The nodes of the SLURM job in which this process runs, with the number of tasks as slots (0 if
// --nproc-per-node is a number). nullopt if there is no SLURM job, if this process is the only task
// of a step, or if --standalone, --node-rank, --rdzv-endpoint or --nnodes 1 is given. `num_nodes`:
// MAX of --nnodes. UsageError if another launcher, such as mpirun or srun, has started several
// copies of this one, because each would be a separate job; also for a heterogeneous SLURM job
// (SLURM_HET_SIZE above 1), and if --nnodes is given but MAX is not the number of nodes.
// Error(kInvalid) if SLURM's list of nodes or of tasks cannot be read.
std::optional<std::vector<launcher::Host>> allocated_hosts(const OptionTable& table,
                                                           int num_nodes) {
  const GetVariable variable = process_environment();
  for (const char* by_hand : {"--standalone", "--node-rank", "--rdzv-endpoint"}) {
    if (table[by_hand].given()) return std::nullopt;
  }
  if (variable("TORCHELASTIC_RUN_ID")) {
    refuse_copies(variable, "WORLD_SIZE", variable("PACELINE_STORE") ? "paceline run" : "torchrun");
  }
  refuse_copies(variable, "OMPI_COMM_WORLD_SIZE", "mpirun");
  refuse_copies(variable, "PMI_SIZE", "mpiexec");
  if (in_step_of_srun(variable)) {
    refuse_copies(variable, "SLURM_STEP_NUM_TASKS", "srun");
    return std::nullopt;  // the only task of a step uses only this node
  }
  const Option& nnodes = table["--nnodes"];
  if (nnodes.given() && num_nodes == 1) return std::nullopt;
  refuse_components(variable);
  const auto list = variable("SLURM_JOB_NODELIST");
  if (!list || !variable("SLURM_JOB_ID")) return std::nullopt;
  const auto names = expand_node_list(*list);
  check(names.has_value(), "SLURM_JOB_NODELIST='{}' is not a list of nodes", *list);
  if (nnodes.given() && static_cast<std::size_t>(num_nodes) != names->size()) {
    throw UsageError(fmt::format("--nnodes: {}, but the SLURM job has {} nodes; leave it out",
                                 nnodes.text, names->size()));
  }
  const std::vector<int> tasks = tasks_of(*names, table["--nproc-per-node"], variable);
  std::vector<launcher::Host> hosts;
  for (std::size_t i = 0; i < names->size(); ++i) hosts.push_back({(*names)[i], tasks[i]});
  return hosts;
}

}  // namespace

std::string id_for_hosts() {
  const auto job = process_environment()("SLURM_JOB_ID");
  return job ? fmt::format("{}-{}", *job, random_hex(2)) : random_hex(8);
}

namespace {

using launcher::Host;
using launcher::HostRoute;
using launcher::HostsPlan;
using launcher::LaunchOptions;

// With these options ssh never asks the user, and ends about 20 s after a host stops answering.
constexpr const char* kDefaultSsh =
    "ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3";

// A user's ssh_config(5) may enable features with which a job's connection does not work: sharing
// the connection with other sessions, a terminal, other commands, other input or output, forwarded
// ports. These options turn them off. ssh takes the first value that it finds, so the user's own -o
// options have precedence over these, and these have precedence over the configuration files.
// Versions of ssh before 8.7 do not know all of them.
constexpr std::array<std::string_view, 16> kSshWithoutExtras = {
    "IgnoreUnknown=ForkAfterAuthentication,SessionType,StdinNull",
    "ControlMaster=no",  // otherwise the user's sessions would end with this one
    "RequestTTY=no",
    "RemoteCommand=none",
    "SessionType=default",
    "StdinNull=no",
    "ForkAfterAuthentication=no",
    "EscapeChar=none",
    "PermitLocalCommand=no",
    "ClearAllForwardings=yes",
    "ExitOnForwardFailure=no",
    "ForwardX11=no",
    "Tunnel=no",
    "VisualHostKey=no",
    "LogLevel=INFO",
    "TCPKeepAlive=yes"};

// Whether the program is OpenSSH itself, not a script that replaces it.
bool is_openssh(const std::string& program) {
  return program == "ssh" || program == "/usr/bin/ssh";
}

// Variables whose names begin with a prefix in kForwarded are copied to every host. Those in kKept
// are not copied, because their values are valid only for this job or machine.
constexpr std::array<std::string_view, 7> kForwarded = {"PACELINE_", "OMP_", "GOMP_", "KMP_",
                                                        "OPENBLAS_", "MKL_", "BLIS_"};
constexpr std::array<std::string_view, 4> kKept = {"PACELINE_SECRET_FILE", "PACELINE_SECRET_FD",
                                                   "PACELINE_STORE", "PACELINE_TERMINAL"};

// srun also takes options from these variables. The first four change or divert the bytes of the
// connection; with the others the agent would get only a part of the job's cores on its node.
constexpr std::array<std::string_view, 9> kOptionsOfSrun = {
    "SLURM_LABELIO",     "SLURM_STDINMODE", "SLURM_STDOUTMODE", "SLURM_STDERRMODE",
    "SLURM_EXACT",       "SLURM_EXCLUSIVE", "SLURM_HINT",       "SLURM_THREADS_PER_CORE",
    "SRUN_CPUS_PER_TASK"};

bool is_variable_name(const std::string& name) {
  const auto good = [](unsigned char c) { return c < 0x80 && (std::isalnum(c) != 0 || c == '_'); };
  return !name.empty() && std::isdigit(static_cast<unsigned char>(name[0])) == 0 &&
         std::all_of(name.begin(), name.end(), good);
}

launcher::Environment exported(const Option& names) {
  const launcher::Environment own = launcher::inherited_environment();
  launcher::Environment chosen;
  for (const auto& [name, value] : own) {
    const bool kept = std::find(kKept.begin(), kKept.end(), name) != kKept.end();
    const bool wanted = std::any_of(kForwarded.begin(), kForwarded.end(),
                                    [&](auto start) { return name.starts_with(start); });
    if (wanted && !kept) chosen.emplace(name, value);
  }
  for (const std::string& name : items_of(names.text)) {
    if (!is_variable_name(name)) {
      throw UsageError(fmt::format("{}: '{}' is not the name of a variable", names.source, name));
    }
    const auto found = own.find(name);
    if (found == own.end()) {
      throw UsageError(fmt::format("{}: there is no variable {} here", names.source, name));
    }
    chosen.insert(*found);
  }
  return chosen;
}

[[noreturn]] void refuse_with_hosts(const Option& option, const char* why) {
  throw UsageError(fmt::format("{} cannot be used with --hosts: {}", option.source, why));
}

// Checks that MAX (or N) of --nnodes is the number of hosts.
void check_number_of_hosts(const Option& nnodes, int num_nodes, std::size_t num_hosts) {
  if (!nnodes.given() || static_cast<std::size_t>(num_nodes) == num_hosts) return;
  throw UsageError(fmt::format("{}: {}, but there are {}", nnodes.source, nnodes.text,
                               counted(num_hosts, "host")));
}

// Divides the remaining ranks of all roles evenly among the hosts without slots, if that is
// possible.
void give_slots_to_roles(std::vector<Host>& hosts, const launcher::Roles& roles) {
  int ranks = launcher::num_ranks(roles), sharers = 0;
  for (const Host& host : hosts) {
    ranks -= host.slots;
    sharers += host.slots == 0 ? 1 : 0;
  }
  if (sharers == 0 || ranks <= 0 || ranks % sharers != 0) return;
  for (Host& host : hosts) {
    if (host.slots == 0) host.slots = ranks / sharers;
  }
}

// Sets the number of ranks on each host. Slots are the most ranks that a host should run;
// --nproc-per-node may ask for fewer. `asked` is 0 for "auto" and without the option, and negative
// for "gpu".
void fill_slots(std::vector<Host>& hosts, const Option& option, const LaunchOptions& launch) {
  const int asked = option.given() ? launch.num_local_ranks : 0;
  if (!option.given()) give_slots_to_roles(hosts, launch.roles);
  for (Host& host : hosts) {
    if (host.slots == 0 && option.given() && asked <= 0) {
      throw UsageError(fmt::format("{}: '{}' needs the slots of host {}: {}:4", option.source,
                                   option.text, host.name, host.name));
    }
    if (host.slots > 0 && asked > host.slots) {
      throw UsageError(fmt::format("{}: {} ranks, but host {} has {} slots", option.source, asked,
                                   host.name, host.slots));
    }
    host.slots = asked > 0 ? asked : std::max(host.slots, 1);
  }
}

// The route through srun, which starts one remote agent on the node, with all cores and memory that
// the job has there, and passes bytes on unchanged.
HostRoute route_through_srun(const Host& host, const std::string& paceline) {
  return {host.name,
          launcher::find_program("srun"),
          {"srun", "--nodelist=" + host.name, "--nodes=1", "--ntasks=1", "--overlap", "--mem=0",
           "--cpu-bind=none", "--mpi=none", "--unbuffered", "--quiet", "--export=ALL", paceline,
           "remote-agent"},
          {kOptionsOfSrun.begin(), kOptionsOfSrun.end()}};
}

// The route to a host: none for this machine, srun, or ssh. `paceline`: the command's path on the
// host.
HostRoute route_to(const Host& host, const OptionTable& table, const std::string& paceline) {
  const Option& ssh_command = table["--ssh-command"];
  const bool allocated = !table["--hosts"].given() && !table["--hostfile"].given();
  if (allocated && !ssh_command.given()) return route_through_srun(host, paceline);
  const bool as_other_user = host.name.find('@') != std::string::npos;
  if (!ssh_command.given() && !as_other_user && launcher::is_this_machine(host.address())) {
    return {host.name, own_program(), {own_program(), "remote-agent"}};
  }
  const std::string text = ssh_command.given() ? ssh_command.text : kDefaultSsh;
  auto command = split_shell_words(text, ssh_command.source);
  check(!command.empty(), "{}: it is empty", ssh_command.source);
  std::string program;
  try {
    program = launcher::find_program(command.front());
  } catch (const launcher::ProgramError& error) {
    fail(ErrorCode::kUnsupported,
         "host {} cannot be reached: {}; install openssh-client or give --ssh-command", host.name,
         error.what());
  }
  if (is_openssh(command.front())) {
    for (const std::string_view option : kSshWithoutExtras) {
      command.insert(command.end(), {"-o", std::string(option)});
    }
  }
  command.push_back(host.name);
  command.push_back("exec " + shell_quoted(paceline) + " remote-agent");
  return {host.name, program, command};
}

}  // namespace

std::string meeting_address(const OptionTable& table, const std::vector<Host>& hosts) {
  const Option& given = table["--master-addr"];
  if (given.given()) return given.text;
  if (hosts.size() == 1) return "127.0.0.1";
  const std::string first = hosts[0].address();
  if (!launcher::is_this_machine(first)) {
    const std::string number = launcher::numeric_address(first);
    return number.empty() ? first : number;
  }
  const auto other = std::find_if(hosts.begin(), hosts.end(), [](const Host& host) {
    return !launcher::is_this_machine(host.address());
  });
  if (other == hosts.end()) return "127.0.0.1";
  std::string own = launcher::own_address_towards(other->address());
  check(!own.empty() && launcher::numeric_address(own) == own,
        "--hosts: cannot tell which address of this machine ({}) the other hosts can reach, "
        "because {} does not resolve; give --master-addr",
        hosts[0].name, other->name);
  return own;
}

std::optional<std::vector<Host>> chosen_hosts(const OptionTable& table,
                                              const LaunchOptions& launch) {
  const Option& list = table["--hosts"];
  const Option& file = table["--hostfile"];
  const Option& ranks = table["--nproc-per-node"];
  if (!list.given() && !file.given()) {
    auto hosts = allocated_hosts(table, launch.num_nodes);
    if (hosts) fill_slots(*hosts, ranks, launch);
    return hosts;
  }
  if (list.given() && file.given()) {
    throw UsageError(fmt::format("{} and {} exclude each other", list.source, file.source));
  }
  const std::pair<const char*, const char*> refused[] = {
      {"--node-rank", "--hosts numbers the hosts itself"},
      {"--standalone", "--standalone is for one machine"},
      {"--rdzv-endpoint", "the hosts do not have to find each other"}};
  for (const auto& [name, why] : refused) {
    if (table[name].given()) refuse_with_hosts(table[name], why);
  }
  auto hosts = list.given() ? launcher::parse_host_list(list.text, list.source)
                            : launcher::read_hostfile(file.text);
  check_number_of_hosts(table["--nnodes"], launch.num_nodes, hosts.size());
  fill_slots(hosts, ranks, launch);
  return hosts;
}

void refuse_options_of_hosts(const OptionTable& table) {
  for (const Option& option : table.options()) {
    if ((option.traits & kOfHosts) == 0 || !option.origin.starts_with("flag ")) continue;
    throw UsageError(fmt::format(
        "{} is for --hosts and --hostfile, but neither is given: the ranks run on this machine",
        option.name));
  }
}

HostsPlan plan_hosts(const OptionTable& table, const RunOptions& run,
                     const std::vector<Host>& hosts) {
  const LaunchOptions& options = run.launch;
  if (options.meeting.is_host) {
    refuse_with_hosts(table["--rdzv-conf"], "is_host is set for the first host");
  }
  HostsPlan plan;
  plan.version = version_number();
  plan.program_hint = "give --remote-paceline PATH if it is somewhere else on the hosts";
  plan.timeline = options.timeline;
  plan.prefix_lines = options.prefix_lines;
  plan.shutdown_timeout = options.shutdown_timeout;
  plan.min_hosts = options.min_nodes;
  plan.host_tries = options.may_restart() ? run.host_retries : 0;
  plan.start_timeout = run.start_timeout;
  launcher::RemoteJob job;
  job.arguments = table.passed_on();
  job.arguments.push_back("--rdzv-id=" + options.run_id);
  job.arguments.push_back(fmt::format("--nnodes={}:{}", options.min_nodes, options.num_nodes));
  job.arguments.push_back("--master-addr=" + meeting_address(table, hosts));
  job.directory = std::filesystem::current_path().string();
  job.environment = exported(table["--export"]);
  job.part.secret = random_hex(Secret::kSize);
  for (const Host& host : hosts) job.part.ranks_per_host.push_back(host.slots);
  if (table["--master-port"].given()) job.port = options.master_port;
  plan.job = {.run_id = options.run_id, .command = options.command};
  plan.job.world_size =
      std::accumulate(job.part.ranks_per_host.begin(), job.part.ranks_per_host.end(), 0);
  for (const Host& host : hosts) plan.job.hosts.push_back(host.name);
  const std::string paceline = run.remote_paceline.empty() ? own_program() : run.remote_paceline;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    launcher::RemoteJob own = job;
    own.part.host = hosts[i].address();
    own.arguments.push_back("--node-rank=" + std::to_string(i));
    own.arguments.push_back("--nproc-per-node=" + std::to_string(hosts[i].slots));
    own.arguments.push_back("--");
    own.arguments.insert(own.arguments.end(), options.command.begin(), options.command.end());
    plan.parts.push_back({route_to(hosts[i], table, paceline), std::move(own)});
  }
  return plan;
}

}  // namespace paceline::apps
