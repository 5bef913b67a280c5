#include "apps/hosts_options.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <numeric>
#include <set>
#include <sstream>
#include <string_view>

#include <fmt/format.h>

#include "paceline/core/check.h"
#include "paceline/core/secret.h"
#include "paceline/hosts/host_address.h"
#include "paceline/process/environment.h"
#include "paceline/process/program.h"
#include "paceline/process/shell_words.h"

#include "apps/allocation.h"
#include "apps/own_program.h"
#include "apps/start_preview.h"
#include "apps/usage_error.h"
#include "apps/version.h"

namespace paceline::apps {
namespace {

using launch::Host;
using launch::HostRoute;
using launch::HostsPlan;

// No questions, and an end within 15 s when a host stops answering.
constexpr const char* kDefaultSsh =
    "ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3";

// Decided here for all hosts; the other options travel as they are.
constexpr std::array<std::string_view, 18> kDecidedHere = {
    "config",     "hosts",          "hostfile",      "ssh-command", "remote-paceline",
    "export",     "host-retries",   "start-timeout", "nnodes",      "node-rank",
    "standalone", "nproc-per-node", "rdzv-id",       "master-addr", "master-port",
    "dry-run",    "print-config",   "help"};

// Variables that every host gets as they are here. Those that name this job's or this machine's own
// things stay here.
constexpr std::array<std::string_view, 5> kForwarded = {"PACELINE_", "OMP_", "OPENBLAS_", "MKL_",
                                                        "BLIS_"};
constexpr std::array<std::string_view, 4> kKept = {"PACELINE_SECRET_FILE", "PACELINE_SECRET_FD",
                                                   "PACELINE_STORE", "PACELINE_TERMINAL"};

constexpr int kHostRetries = 20, kMostHostRetries = 1'000'000;

bool is_variable_name(const std::string& name) {
  const auto good = [](unsigned char c) { return c < 0x80 && (std::isalnum(c) != 0 || c == '_'); };
  return !name.empty() && std::isdigit(static_cast<unsigned char>(name[0])) == 0 &&
         std::all_of(name.begin(), name.end(), good);
}

launch::Environment exported(const std::string& names, const CommandLine& line) {
  const launch::Environment own = launch::inherited_environment();
  launch::Environment chosen;
  for (const auto& [name, value] : own) {
    const bool kept = std::find(kKept.begin(), kKept.end(), name) != kKept.end();
    const bool wanted = std::any_of(kForwarded.begin(), kForwarded.end(),
                                    [&](auto start) { return name.starts_with(start); });
    if (wanted && !kept) chosen.emplace(name, value);
  }
  std::istringstream items(names);
  for (std::string name; std::getline(items, name, ',');) {
    if (!is_variable_name(name)) {
      throw UsageError(
          fmt::format("{}: '{}' is not the name of a variable", source_of("--export", line), name));
    }
    const auto found = own.find(name);
    if (found == own.end()) {
      throw UsageError(
          fmt::format("{}: there is no variable {} here", source_of("--export", line), name));
    }
    chosen.insert(*found);
  }
  return chosen;
}

void refuse_with_hosts(const std::string& flag, const std::string& value, const CommandLine& line,
                       const char* why) {
  if (value.empty()) return;
  throw UsageError(fmt::format("{} does not go with --hosts: {}", source_of(flag, line), why));
}

// MAX, or N, is the number of hosts.
void check_nodes(const RunTexts& texts, const CommandLine& line, std::size_t num_hosts) {
  if (texts.nnodes.empty()) return;
  const auto number = [&](const std::string& text) {
    return check_integer(line, "--nnodes", text, 1, launch::kMaxHosts);
  };
  const std::string source = source_of("--nnodes", line);
  const long max = number(most_nodes(texts.nnodes));
  const long min = number(texts.nnodes.substr(0, texts.nnodes.find(':')));
  if (min > max) throw UsageError(fmt::format("{}: '{}': MIN is above MAX", source, texts.nnodes));
  if (max == static_cast<long>(num_hosts)) return;
  throw UsageError(fmt::format("{}: {}, but there are {} host{}", source, texts.nnodes, num_hosts,
                               num_hosts == 1 ? "" : "s"));
}

// Slots say what a host has room for; --nproc-per-node may ask for less.
void fill_slots(std::vector<Host>& hosts, const RunTexts& texts, const CommandLine& line) {
  const std::string& text = texts.nproc_per_node;
  const bool number = !text.empty() && std::isdigit(static_cast<unsigned char>(text[0])) != 0;
  const int asked =
      number ? static_cast<int>(check_integer(line, "--nproc-per-node", text, 1, launch::kMaxSlots))
             : 0;
  for (Host& host : hosts) {
    if (host.slots == 0 && !number && !text.empty()) {
      throw UsageError(fmt::format("{}: '{}' needs the slots of host {}: {}:4",
                                   source_of("--nproc-per-node", line), text, host.name,
                                   host.name));
    }
    if (host.slots > 0 && asked > host.slots) {
      throw UsageError(fmt::format("{}: {} ranks, but host {} has {} slots",
                                   source_of("--nproc-per-node", line), asked, host.name,
                                   host.slots));
    }
    host.slots = asked > 0 ? asked : std::max(host.slots, 1);
  }
}

std::string remote_program(const RunTexts& texts) {
  return texts.remote_paceline.empty() ? own_program() : texts.remote_paceline;
}

// srun starts one end on the node, with all that the job has there, and passes bytes on as they
// are.
HostRoute route_through_srun(const Host& host, const RunTexts& texts) {
  const char* path = std::getenv("PATH");
  return {host.name,
          launch::find_program("srun", path != nullptr ? path : ""),
          {"srun", "--nodelist=" + host.name, "--nodes=1", "--ntasks=1", "--overlap", "--mem=0",
           "--cpu-bind=none", "--mpi=none", "--unbuffered", "--quiet", "--export=ALL",
           remote_program(texts), "remote-agent"}};
}

HostRoute route_to(const Host& host, const RunTexts& texts, const CommandLine& line) {
  const bool allocated = texts.hosts.empty() && texts.hostfile.empty();
  if (allocated && texts.ssh_command.empty()) return route_through_srun(host, texts);
  const bool as_other_user = host.name.find('@') != std::string::npos;
  if (texts.ssh_command.empty() && !as_other_user && launch::is_this_machine(host.address())) {
    return {host.name, own_program(), {own_program(), "remote-agent"}};
  }
  const std::string text = texts.ssh_command.empty() ? kDefaultSsh : texts.ssh_command;
  auto command = launch::split_shell_words(text, source_of("--ssh-command", line));
  check(!command.empty(), "{}: it is empty", source_of("--ssh-command", line));
  const char* path = std::getenv("PATH");
  std::string program;
  try {
    program = launch::find_program(command.front(), path != nullptr ? path : "");
  } catch (const launch::ProgramError& error) {
    fail(ErrorCode::kUnsupported,
         "host {} cannot be reached: {}; install openssh-client or give --ssh-command", host.name,
         error.what());
  }
  command.push_back(host.name);
  command.push_back("exec " + launch::shell_quoted(remote_program(texts)) + " remote-agent");
  return {host.name, program, command};
}

}  // namespace

std::string meeting_address(const std::vector<Host>& hosts, const RunTexts& texts) {
  if (!texts.master_addr.empty()) return texts.master_addr;
  if (hosts.size() == 1) return "127.0.0.1";
  const std::string first = hosts[0].address();
  if (!launch::is_this_machine(first)) {
    const std::string number = launch::numeric_address(first);
    return number.empty() ? first : number;
  }
  const auto other = std::find_if(hosts.begin(), hosts.end(), [](const Host& host) {
    return !launch::is_this_machine(host.address());
  });
  if (other == hosts.end()) return "127.0.0.1";
  std::string own = launch::own_address_towards(other->address());
  check(!own.empty() && launch::numeric_address(own) == own,
        "--hosts: which address of this machine ({}) the other hosts reach cannot be told from "
        "here, as {} does not resolve; give --master-addr",
        hosts[0].name, other->name);
  return own;
}

std::optional<std::vector<Host>> chosen_hosts(const RunTexts& texts, const CommandLine& line) {
  if (texts.hosts.empty() && texts.hostfile.empty()) {
    auto hosts = allocated_hosts(texts);
    if (hosts) fill_slots(*hosts, texts, line);
    return hosts;
  }
  if (!texts.hosts.empty() && !texts.hostfile.empty()) {
    throw UsageError(fmt::format("{} and {} exclude each other", source_of("--hosts", line),
                                 source_of("--hostfile", line)));
  }
  refuse_with_hosts("--node-rank", texts.node_rank, line, "it numbers the hosts itself");
  refuse_with_hosts("--standalone", texts.standalone ? "1" : "", line, "it means one machine");
  refuse_with_hosts("--rdzv-endpoint", texts.rdzv_endpoint, line,
                    "the hosts do not have to find each other");
  auto hosts = texts.hosts.empty()
                   ? launch::read_hostfile(texts.hostfile)
                   : launch::parse_host_list(texts.hosts, source_of("--hosts", line));
  check_nodes(texts, line, hosts.size());
  fill_slots(hosts, texts, line);
  return hosts;
}

void refuse_options_of_hosts(const CommandLine& line) {
  for (const char* flag :
       {"--ssh-command", "--remote-paceline", "--export", "--start-timeout", "--host-retries"}) {
    if (!line.has(flag)) continue;
    throw UsageError(
        fmt::format("{} is for --hosts and --hostfile, and none is given: the ranks run "
                    "on this machine",
                    flag));
  }
}

std::vector<std::string> passed_on(const CLI::App& app) {
  std::vector<std::string> arguments;
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() == 0 || option->get_lnames().empty()) continue;
    const std::string& name = option->get_lnames().front();
    if (option->get_group() == kJobGroup) continue;
    if (std::find(kDecidedHere.begin(), kDecidedHere.end(), name) != kDecidedHere.end()) continue;
    const bool flag = option->get_items_expected_max() == 0;
    if (flag && option->as<bool>()) arguments.push_back("--" + name);
    if (!flag) arguments.push_back("--" + name + "=" + option->as<std::string>());
  }
  return arguments;
}

RunTexts texts_on_host(const RunTexts& texts, const std::vector<Host>& hosts, std::size_t host) {
  RunTexts there = texts;
  there.nproc_per_node = std::to_string(hosts[host].slots);
  if (texts.nnodes.find(':') == std::string::npos) there.nnodes = std::to_string(hosts.size());
  there.node_rank = std::to_string(host);
  return there;
}

HostsPlan plan_hosts(const CLI::App& app, const RunTexts& texts, const CommandLine& line,
                     const launch::LaunchOptions& options, const std::vector<Host>& hosts) {
  refuse_with_hosts("--rdzv-conf", options.meeting.is_host ? "is_host" : "", line,
                    "is_host is what the first host is");
  HostsPlan plan;
  plan.version = version_number();
  plan.program_hint = "give --remote-paceline PATH if it is somewhere else on the hosts";
  plan.timeline = options.timeline;
  plan.prefix_lines = options.prefix_lines;
  plan.shutdown_timeout = options.shutdown_timeout;
  plan.min_hosts = options.min_nodes;
  plan.host_tries = texts.host_retries.empty()
                        ? kHostRetries
                        : static_cast<int>(check_integer(line, "--host-retries", texts.host_retries,
                                                         0, kMostHostRetries));
  if (!options.may_restart()) plan.host_tries = 0;
  if (!texts.start_timeout.empty()) {
    plan.start_timeout = check_seconds(line, "--start-timeout", texts.start_timeout);
  }
  launch::RemoteJob job;
  job.arguments = passed_on(app);
  job.arguments.push_back("--rdzv-id=" + options.run_id);
  job.arguments.push_back(fmt::format("--nnodes={}:{}", options.min_nodes, options.num_nodes));
  job.arguments.push_back("--master-addr=" + meeting_address(hosts, texts));
  job.directory = std::filesystem::current_path().string();
  job.environment = exported(texts.export_names, line);
  job.part.secret = random_hex(Secret::kSize);
  for (const Host& host : hosts) job.part.ranks_per_host.push_back(host.slots);
  if (!texts.master_port.empty()) job.port = options.master_port;
  plan.job = {.run_id = options.run_id, .command = options.command};
  plan.job.world_size =
      std::accumulate(job.part.ranks_per_host.begin(), job.part.ranks_per_host.end(), 0);
  for (const Host& host : hosts) plan.job.hosts.push_back(host.name);
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    launch::RemoteJob own = job;
    own.part.host = hosts[i].address();
    own.arguments.push_back("--node-rank=" + std::to_string(i));
    own.arguments.push_back("--nproc-per-node=" + std::to_string(hosts[i].slots));
    own.arguments.push_back("--");
    own.arguments.insert(own.arguments.end(), options.command.begin(), options.command.end());
    plan.parts.push_back({route_to(hosts[i], texts, line), std::move(own)});
  }
  return plan;
}

}  // namespace paceline::apps
