#include "paceline/engine/rendezvous/launch_environment.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/option_text.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/rendezvous/fork_server.h"

namespace paceline {

namespace {

// One launcher's view of this process.
struct Row {
  LaunchEnvironment environment;
  std::string evidence;  // the variables that prove this view, for messages
  bool agent = false;    // an agent (ours or torchrun's) started this process, so variables of an
                         // outer launcher describe the agent
  // mpirun or its helper on this node (Open MPI's daemon, Hydra's proxy) started this process; see
  // ignore_steps_of_helpers().
  bool helped = false;
  bool one_per_node = false;  // a SLURM step with one task on each of its nodes
};

struct Names {
  const char *rank, *size, *local_rank, *local_size;
};

constexpr Names kTorchrun = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Names kOpenMpi = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                            "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Names kPmi = {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};

void check_below(const char* name, int value, const char* limit_name, int limit) {
  check(value < limit, "{}={} must be below {}={}", name, value, limit_name, limit);
}

// Returns nullopt when neither rank nor size is set. A launcher sets both; one alone is a mistake.
std::optional<Row> read_row(const GetVariable& variable, const Names& names) {
  const auto rank = read_number(variable, names.rank);
  const auto size = read_number(variable, names.size);
  if (!rank && !size) return std::nullopt;
  check(rank && size,
        "{} is set but {} is not: set both ({}=0 {}=1 for a process alone) or neither",
        rank ? names.rank : names.size, rank ? names.size : names.rank, names.rank, names.size);
  check(*size > 0, "{}=0: a job has at least one process", names.size);
  check_below(names.rank, *rank, names.size, *size);

  Row row;
  const auto local_rank = read_number(variable, names.local_rank);
  const auto local_size = read_number(variable, names.local_size);
  row.environment.rank = *rank;
  row.environment.world_size = *size;
  row.environment.local_rank = local_rank.value_or(0);
  row.environment.local_world_size = local_size.value_or(row.environment.local_rank + 1);
  check_below(names.local_rank, row.environment.local_rank,
              local_size ? names.local_size : names.size, local_size ? *local_size : *size);
  check(row.environment.local_world_size <= *size, "{}={} is more than {}={}", names.local_size,
        row.environment.local_world_size, names.size, *size);
  row.evidence = fmt::format("{}={} {}={}", names.rank, *rank, names.size, *size);
  return row;
}

// Reads the role; "default" is torchrun's name for no role.
void read_role(const GetVariable& variable, LaunchEnvironment& environment) {
  const std::string name = variable("ROLE_NAME").value_or("");
  const auto rank = read_number(variable, "ROLE_RANK");
  if (name.empty() || name == "default" || !rank) return;
  environment.role = name;
  environment.role_rank = *rank;
}

std::optional<Row> torchrun_row(const GetVariable& variable) {
  auto row = read_row(variable, kTorchrun);
  if (!row) return row;
  const bool paceline = variable("PACELINE_STORE").has_value();
  const auto run_id = variable("TORCHELASTIC_RUN_ID");
  row->agent = paceline || run_id.has_value();
  row->environment.launcher = paceline ? "paceline" : run_id ? "torchrun" : "env";
  row->environment.job_id = run_id.value_or("");
  if (row->agent) read_role(variable, row->environment);
  row->environment.loaded_before = paceline && grown_from_seed();
  row->environment.restart_count = read_number(variable, "TORCHELASTIC_RESTART_COUNT").value_or(0);
  return row;
}

std::optional<Row> open_mpi_row(const GetVariable& variable) {
  auto row = read_row(variable, kOpenMpi);
  if (!row) return row;
  row->environment.launcher = "openmpi";
  row->helped = true;
  row->environment.job_id =
      variable("PMIX_NAMESPACE").value_or(variable("OMPI_MCA_ess_base_jobid").value_or(""));
  return row;
}

std::optional<int> slurm_local_size(const GetVariable& variable) {
  const auto text = variable("SLURM_STEP_TASKS_PER_NODE");
  if (!text) return std::nullopt;
  const int node = read_number(variable, "SLURM_NODEID").value_or(0);
  const auto tasks = expand_task_counts(*text);
  check(tasks && node < static_cast<int>(tasks->size()),
        "SLURM_STEP_TASKS_PER_NODE='{}' has no entry for node {}", *text, node);
  return (*tasks)[static_cast<std::size_t>(node)];
}

std::optional<Row> slurm_row(const GetVariable& variable) {
  if (!in_step_of_srun(variable)) return std::nullopt;
  const auto size = read_number(variable, "SLURM_STEP_NUM_TASKS");
  if (!size || *size == 1) return std::nullopt;  // a single task contradicts no other launcher
  const auto rank = read_number(variable, "SLURM_PROCID");
  check(rank.has_value(), "SLURM_STEP_NUM_TASKS={} is set but SLURM_PROCID is not", *size);
  check_below("SLURM_PROCID", *rank, "SLURM_STEP_NUM_TASKS", *size);
  Row row;
  row.environment.rank = *rank;
  row.environment.world_size = *size;
  row.environment.local_rank = read_number(variable, "SLURM_LOCALID").value_or(0);
  row.environment.local_world_size =
      slurm_local_size(variable).value_or(row.environment.local_rank + 1);
  check_below("SLURM_LOCALID", row.environment.local_rank, "the tasks of this node",
              row.environment.local_world_size);
  row.environment.launcher = "slurm";
  row.environment.job_id = variable("SLURM_JOB_ID").value_or("") + "." + *variable("SLURM_STEP_ID");
  row.environment.restart_count = read_number(variable, "SLURM_RESTART_COUNT").value_or(0);
  row.evidence = fmt::format("SLURM_PROCID={} SLURM_STEP_NUM_TASKS={}", *rank, *size);
  row.one_per_node = read_number(variable, "SLURM_STEP_NUM_NODES") == size;
  return row;
}

std::optional<Row> pmi_row(const GetVariable& variable) {
  auto row = read_row(variable, kPmi);
  if (!row) return row;
  row->environment.launcher = "pmi";
  // Hydra sets MPI_LOCALNRANKS, and its proxy is the parent of all ranks of a host. SLURM's own PMI
  // does not set that variable.
  row->helped = variable(kPmi.local_size).has_value();
  row->environment.job_id = variable("PMI_JOBID").value_or(fmt::format("parent-{}", ::getppid()));
  return row;
}

std::string corrected_command(const Row& first, const Row& second) {
  if (first.environment.launcher == "env") {
    return "to use " + second.environment.launcher +
           "'s variables, unset the first: env -u RANK -u WORLD_SIZE -u LOCAL_RANK "
           "-u LOCAL_WORLD_SIZE " +
           own_command();
  }
  return fmt::format("start the program with one launcher only, for example: {} {} {}",
                     second.environment.launcher == "slurm" ? "srun -n" : "mpirun -np",
                     std::max(first.environment.world_size, second.environment.world_size),
                     own_command());
}

// Inside a SLURM job, mpirun starts a helper on each node with a job step, and the helpers start
// the ranks. The ranks inherit the variables of that step, which describe the helpers. The step
// cannot be recognised by its name: SLURM_JOB_NAME is the job's name ("interactive" under salloc).
void ignore_steps_of_helpers(std::vector<Row>& rows) {
  const bool helped =
      std::any_of(rows.begin(), rows.end(), [](const Row& row) { return row.helped; });
  if (helped) std::erase_if(rows, [](const Row& row) { return row.one_per_node; });
}

void check_agreement(const Row& first, const Row& second) {
  check(first.environment.rank == second.environment.rank &&
            first.environment.world_size == second.environment.world_size,
        "two launchers contradict each other: {} ({}) and {} ({}); {}", first.evidence,
        first.environment.launcher, second.evidence, second.environment.launcher,
        corrected_command(first, second));
}

// `paceline run` removes the variables of MPI and torchrun from its ranks' environment
// (launcher/ranks/job_services.h). So if a rank finds such variables, `paceline run` has started
// another launcher as each rank, and that launcher starts several processes in place of one.
void refuse_launcher_between(const Row& row, const GetVariable& variable) {
  if (row.environment.launcher != "paceline") return;
  std::string between;
  if (variable("TORCHELASTIC_USE_AGENT_STORE")) between = "torchrun has started it";
  for (const auto read : {open_mpi_row, pmi_row}) {
    if (const auto inner = read(variable)) {
      between = fmt::format("mpirun has started it ({})", inner->evidence);
    }
  }
  check(between.empty(),
        "two launchers, one inside the other: this process is in a rank of paceline run ({}), and "
        "{}; start the program with one launcher only: paceline run --nproc-per-node {} {}",
        row.evidence, between, row.environment.local_world_size, own_command());
}

// Without this check, the program in an sbatch script for n tasks would run as one process, a group
// of one.
void refuse_batch_without_step(const GetVariable& variable) {
  if (in_step_of_srun(variable)) return;
  const auto tasks = variable("SLURM_NTASKS");
  if (!tasks || *tasks == "1") return;
  fail(ErrorCode::kInvalid,
       "SLURM_NTASKS={} but this process is not part of a job step: it would run alone. Prepend "
       "srun: srun {} (a process alone: RANK=0 WORLD_SIZE=1)",
       *tasks, own_command());
}

}  // namespace

GetVariable process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) return std::nullopt;
    if (*value == '\0' && name.starts_with("PACELINE_")) return std::nullopt;
    return value;
  };
}

LaunchEnvironment detect_launch_environment(const GetVariable& variable) {
  std::vector<Row> rows;
  for (const auto read : {torchrun_row, open_mpi_row, slurm_row, pmi_row}) {
    if (auto row = read(variable)) rows.push_back(std::move(*row));
    if (rows.empty() || !rows.front().agent) continue;
    refuse_launcher_between(rows.front(), variable);
    return rows.front().environment;
  }
  if (rows.empty()) {
    refuse_batch_without_step(variable);
    return {};
  }
  ignore_steps_of_helpers(rows);
  for (std::size_t i = 1; i < rows.size(); ++i) check_agreement(rows.front(), rows[i]);
  // If variables set by hand agree with those of a launcher, prefer the launcher, which knows more
  // about the hosts.
  const bool by_hand = rows.front().environment.launcher == "env" && rows.size() > 1;
  return by_hand ? rows[1].environment : rows.front().environment;
}

std::optional<int> read_number(const GetVariable& variable, const std::string& name, int greatest) {
  const auto text = variable(name);
  if (!text) return std::nullopt;
  const auto number = parse_number<int>(*text, 0, greatest);
  check(number.has_value(), "{}='{}' is not a whole number from 0 to {}", name, *text, greatest);
  return number;
}

std::string require_text(const GetVariable& variable, const std::string& name,
                         const std::string& why) {
  const auto text = variable(name);
  check(text && !text->empty(), "the variable {} is not set: {}", name, why);
  return *text;
}

std::string own_command() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string command((std::istreambuf_iterator<char>(file)), {});
  while (!command.empty() && command.back() == '\0') command.pop_back();
  std::replace_if(
      command.begin(), command.end(), [](char c) { return c < ' '; }, ' ');
  return command.empty() ? "PROGRAM" : command;
}

namespace {

// Reads at offset 0 explicitly, because several processes share the descriptor's position.
Secret read_secret(int fd, const std::string& source) {
  std::array<char, 4096> buffer;
  const ssize_t got = read_whole_at(fd, 0, std::as_writable_bytes(std::span(buffer)));
  check(got >= 0, "{} cannot be read: {}", source, std::strerror(errno));
  const Secret secret =
      Secret::from_text(std::string_view(buffer.data(), static_cast<std::size_t>(got)));
  ::explicit_bzero(buffer.data(), buffer.size());
  return secret;
}

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

Secret read_descriptor(int fd) {
  check(
      is_open(fd),
      "the descriptor of PACELINE_SECRET_FD={} is closed: something between the launcher and this "
      "program closed it, as Python's subprocess does. Let it pass (subprocess: close_fds=False, "
      "or pass_fds=[int(os.environ['PACELINE_SECRET_FD'])]), or set PACELINE_SECRET_FILE for the "
      "launcher to a private file, which the ranks then read",
      fd);
  Secret secret = read_secret(fd, fmt::format("the descriptor of PACELINE_SECRET_FD={}", fd));
  const int flags = ::fcntl(fd, F_GETFD);
  if (flags >= 0) ::fcntl(fd, F_SETFD, flags | FD_CLOEXEC);
  return secret;
}

Secret read_private_file(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  check(static_cast<bool>(file), "PACELINE_SECRET_FILE={} cannot be opened: {}", path,
        std::strerror(errno));
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) throw system_error("stat " + path);
  check(
      S_ISREG(status.st_mode) && status.st_uid == ::geteuid() && (status.st_mode & 077) == 0,
      "PACELINE_SECRET_FILE={} must be a file of user {} that no other user can read: chmod 600 {}",
      path, ::geteuid(), path);
  return read_secret(file.get(), "PACELINE_SECRET_FILE=" + path);
}

}  // namespace

std::optional<Secret> find_job_secret(const GetVariable& variable) {
  const auto fd = read_number(variable, "PACELINE_SECRET_FD");
  const auto path = variable("PACELINE_SECRET_FILE");
  if (fd && (is_open(*fd) || !path)) return read_descriptor(*fd);
  if (path) return read_private_file(*path);
  return std::nullopt;
}

namespace {

constexpr std::size_t kMaxNodes = 65536;

std::optional<unsigned> number(std::string_view text) {
  return parse_number<unsigned>(text, 0, 999'999'999);
}

// Splits the text at the commas outside of brackets.
std::vector<std::string> parts_of(const std::string& text) {
  std::vector<std::string> parts(1);
  bool inside = false;
  for (const char c : text) {
    if (c == '[') inside = true;
    if (c == ']') inside = false;
    if (c == ',' && !inside) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

// Adds the nodes of a range such as "1-3" or "07" after a prefix; leading zeros set the width.
bool add_range(const std::string& prefix, const std::string& range,
               std::vector<std::string>& nodes) {
  const auto dash = range.find('-');
  const std::string first = range.substr(0, dash);
  const auto begin = number(first);
  const auto end = dash == std::string::npos ? begin : number(range.substr(dash + 1));
  if (!begin || !end || *end < *begin || *end - *begin >= kMaxNodes) return false;
  for (unsigned i = *begin; i <= *end; ++i) {
    nodes.push_back(fmt::format("{}{:0{}}", prefix, i, first.size()));
  }
  return nodes.size() <= kMaxNodes;
}

bool is_name(const std::string& text) {
  return !text.empty() && text.front() != '-' &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return (c < 0x80 && std::isalnum(c) != 0) || c == '-' || c == '_' || c == '.';
         });
}

bool add_part(const std::string& part, std::vector<std::string>& nodes) {
  const auto bracket = part.find('[');
  if (bracket == std::string::npos) {
    nodes.push_back(part);
    return is_name(part) && nodes.size() <= kMaxNodes;
  }
  if (part.back() != ']' || !is_name(part.substr(0, bracket))) return false;
  const std::string ranges = part.substr(bracket + 1, part.size() - bracket - 2);
  for (const std::string& range : parts_of(ranges)) {
    if (!add_range(part.substr(0, bracket), range, nodes)) return false;
  }
  return true;
}

}  // namespace

std::optional<std::vector<std::string>> expand_node_list(const std::string& text) {
  std::vector<std::string> nodes;
  for (const std::string& part : parts_of(text)) {
    if (!add_part(part, nodes)) return std::nullopt;
  }
  return nodes;
}

std::optional<std::vector<int>> expand_task_counts(const std::string& text) {
  std::vector<int> counts;
  for (const std::string& part : parts_of(text)) {
    const auto parenthesis = part.find("(x");
    const auto count = number(part.substr(0, parenthesis));
    std::optional<unsigned> times = 1;
    if (parenthesis != std::string::npos) {
      if (part.back() != ')') return std::nullopt;
      times = number(part.substr(parenthesis + 2, part.size() - parenthesis - 3));
    }
    if (!count || *count == 0 || !times || counts.size() + *times > kMaxNodes) return std::nullopt;
    counts.insert(counts.end(), *times, static_cast<int>(*count));
  }
  return counts;
}

bool in_step_of_srun(const GetVariable& variable) {
  // SLURM_INTERACTIVE_STEP and the other special steps in <slurm/slurm.h> have this number or a
  // higher one.
  constexpr std::uint64_t kFirstOfSlurmsOwn = 0xfffffff0;
  const auto text = variable("SLURM_STEP_ID");
  if (!text) return false;
  std::uint64_t number = 0;
  const auto [stop, status] = std::from_chars(text->data(), text->data() + text->size(), number);
  return status != std::errc() || number < kFirstOfSlurmsOwn;
}

}  // namespace paceline
