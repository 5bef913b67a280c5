#include "apps/run/meeting_options.h"

#include <limits>

#include <fmt/format.h>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/system/socket.h"
#include "paceline/launcher/output/line_formatter.h"

#include "apps/cli/option_value.h"

namespace paceline::apps {

namespace {

using launcher::LaunchOptions;

constexpr long kMaxNodes = 65536;
constexpr long kMaxRestarts = 1'000'000;
constexpr double kMaxSecondsToMeet = 86400.0 * 365;
constexpr std::uint16_t kMasterPort = 29500;  // torchrun's default
constexpr long kEndpointPort = 29400;         // torchrun's default for c10d

OptionTarget nodes_target(LaunchOptions& launch) {
  const auto read = [&launch](const Option& option) {
    const auto number = [&](const std::string& part) {
      if (part.find_first_not_of("0123456789") != std::string::npos || part.empty()) {
        option.refuse("a whole number or MIN:MAX");
      }
      return static_cast<int>(whole_number(option.source, part, 1, kMaxNodes));
    };
    const auto colon = option.text.find(':');
    launch.min_nodes = number(option.text.substr(0, colon));
    launch.num_nodes = number(option.text.substr(colon + 1));  // without a colon: npos + 1 is 0
    if (launch.min_nodes <= launch.num_nodes) return;
    throw UsageError(fmt::format("{}: '{}': MIN is above MAX", option.source, option.text));
  };
  const auto print = [&launch] {
    return launch.min_nodes == launch.num_nodes
               ? fmt::to_string(launch.num_nodes)
               : fmt::format("{}:{}", launch.min_nodes, launch.num_nodes);
  };
  return {.read = read, .print = print};
}

OptionTarget rdzv_backend_target(std::string& backend) {
  OptionTarget target = text_target(backend);
  target.read = [&backend](const Option& option) {
    backend = option.text;
    if (backend.starts_with("etcd")) {
      throw UsageError(
          fmt::format("{}: '{}': the machines meet at one of the job's agents, so no etcd is "
                      "needed; leave the option out",
                      option.source, backend));
    }
    if (backend != "paceline" && backend != "c10d" && backend != "static") {
      option.refuse("paceline, c10d or static");
    }
  };
  return target;
}

// The target has no read(): check_meeting() reads the endpoint, when it is known whether the job
// has several nodes.
OptionTarget endpoint_target(const LaunchOptions& launch) {
  return {.print = [&launch] {
    return launch.several_nodes() ? to_string(launch.meeting.endpoint) : std::string();
  }};
}

OptionTarget address_target(std::string& address) {
  OptionTarget target = text_target(address);
  target.read = [&address](const Option& option) {
    try {
      address = parse_host(option.text, option.source);
    } catch (const Error& error) {
      throw UsageError(error.what());
    }
  };
  return target;
}

OptionTarget node_rank_target(const LaunchOptions& launch) {
  return {.print = [&launch] { return launch.node_rank ? fmt::to_string(*launch.node_rank) : ""; },
          .unset = "as they come"};
}

// Reads torchrun's keys. Keys that concern only torchrun's own stores are accepted and have no
// effect.
void read_conf(const Option& option, launcher::MeetingOptions& meeting) {
  for (const std::string& item : items_of(option.text)) {
    const auto equals = item.find('=');
    const std::string key = item.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : item.substr(equals + 1);
    const auto refuse = [&](const char* allowed) { refuse_value(option.source, item, allowed); };
    const auto seconds = [&] {
      return seconds_number(option.source, value, kMaxSecondsToMeet, key + "=");
    };
    if (key == "join_timeout" || key == "timeout") {
      meeting.join_timeout = seconds();
    } else if (key == "last_call_timeout") {
      meeting.last_call_timeout = seconds();
    } else if (key == "keep_alive_interval") {
      meeting.keep_alive_interval = std::chrono::ceil<std::chrono::milliseconds>(seconds());
      if (meeting.keep_alive_interval.count() == 0) refuse("above 0");
    } else if (key == "keep_alive_max_attempt") {
      meeting.keep_alive_attempts =
          static_cast<int>(whole_number(option.source, value, 1, 100000, "", key + "="));
    } else if (key == "is_host") {
      const bool yes = value == "true" || value == "True" || value == "1";
      const bool no = value == "false" || value == "False" || value == "0";
      if (!yes && !no) refuse("is_host=true or is_host=false");
      meeting.is_host = yes;
    } else if (key != "close_timeout" && key != "read_timeout" && key != "store_type") {
      refuse(
          "join_timeout, last_call_timeout, keep_alive_interval, keep_alive_max_attempt or is_host "
          "with =VALUE");
    }
  }
}

Endpoint endpoint_of(const Option& option, bool several) {
  const std::string& text = option.text;
  const bool has_port = text.find(':') != std::string::npos &&
                        (text.front() != '[' || text.find("]:") != std::string::npos);
  Endpoint endpoint;
  try {
    endpoint =
        parse_endpoint(has_port ? text : fmt::format("{}:{}", text, kEndpointPort), option.source);
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
  if (several && endpoint.port == 0) option.refuse("HOST:PORT with a port from 1 to 65535");
  return endpoint;
}

void check_endpoint(const OptionTable& table, LaunchOptions& launch) {
  const bool several = launch.several_nodes();
  launch.meeting.endpoint = {launch.master_addr, launch.master_port};
  const Option& option = table["--rdzv-endpoint"];
  if (!option.given()) return;
  const Endpoint endpoint = endpoint_of(option, several);
  if (!several) return;  // a single node meets no other node
  if (table["--master-addr"].given() || table["--master-port"].given()) {
    throw UsageError(
        fmt::format("{} and --master-addr or --master-port exclude each other", option.source));
  }
  launch.meeting.endpoint = endpoint;
}

void check_nodes(const OptionTable& table, LaunchOptions& launch) {
  const Option& rank = table["--node-rank"];
  if (rank.given()) launch.node_rank = static_cast<int>(rank.number(0, launch.num_nodes - 1));
  if (!table["--standalone"].given()) return;
  if (launch.several_nodes()) {
    throw UsageError(fmt::format("--standalone is for one node, but {} is {}",
                                 table["--nnodes"].source, table["--nnodes"].text));
  }
  // As with torchrun, --standalone has precedence over the rendezvous flags.
  launch.master_addr = LaunchOptions().master_addr;
  launch.master_port = LaunchOptions().master_port;
}

}  // namespace

void declare_meeting_options(OptionTable& table, RunOptions& run) {
  LaunchOptions& launch = run.launch;
  table.flag("--standalone", "One machine, free ports (the default)", {},
             kDecidedHere | kNotSubmitted);
  table.value("--nnodes", "N|MIN:MAX",
              "Machines of the job; MIN:MAX: it continues while at least MIN are left",
              nodes_target(launch), kDecidedHere);
  table.value("--node-rank", "R", "Number of this machine [in order of arrival]",
              node_rank_target(launch), kDecidedHere | kNotSubmitted);
  table.value("--master-addr", "A", "Address of machine 0", address_target(launch.master_addr),
              kDecidedHere | kNotSubmitted);
  table.value("--master-port", "P", "Port of machine 0 [one machine: a free one; several: 29500]",
              number_target(launch.master_port, 1, 65535, "a free one"), kDecidedHere);
  table.flag("--encrypt", "Encrypt what the ranks send over TCP", bool_target(launch.encrypt));
  table.value("--rdzv-endpoint", "HOST:PORT", "Where the machines meet [master-addr:master-port]",
              endpoint_target(launch), kNotSubmitted);
  table.value("--rdzv-id", "ID", "Name of the job [random; if agents are started by hand: none]",
              text_target(launch.run_id), kDecidedHere | kNotSubmitted);
  table.value("--role", "NAME", "The ranks' ROLE_NAME", text_target(launch.role));
  table.value("--rdzv-backend", "NAME", "paceline; c10d and static mean the same here",
              rdzv_backend_target(run.rdzv_backend));
  table.value("--rdzv-conf", "K=V,...",
              "join_timeout=600, last_call_timeout=3, keep_alive_interval=0.5, "
              "keep_alive_max_attempt=6, is_host",
              {.read = [&launch](const Option& option) { read_conf(option, launch.meeting); }});

  table.group("Surviving");
  table.value("--max-restarts", "N",
              "Start all ranks again after a failure, up to N times within the window",
              number_target(launch.restarts.max_restarts, 0, kMaxRestarts));
  table.value("--restart-window", "S", "Seconds after which a restart no longer counts; 0: never",
              seconds_target(launch.restarts.window, kMaxSecondsToMeet));
  table.value("--on-damage", "restart|stop",
              "If ranks' parameters differ or a stored state is damaged: restart all ranks from "
              "the last checkpoint, as after any failure; or end the job",
              word_target(launch.restarts.after_damage, {{"restart", true}, {"stop", false}}));
  table.value("--fork-server", "on|off",
              "Start ranks again from a process that has loaded the program; off: execute it",
              word_target(launch.fork_server, {{"on", true}, {"off", false}}));
  table.value("--monitor-interval", "S",
              "Accepted as in torchrun, without effect: failures are noticed at once",
              {.read = [](const Option& option) {
                seconds_number(option.source, option.text, kMaxSecondsToMeet);
              }});
  table.value("--chaos", "FAULTS",
              "Kill, stop or slow ranks on purpose: kill:rate=1/15s,stop:rank=1@30s,slow:rank=0",
              {.read = [&launch](const Option& option) {
                launch.chaos = launcher::parse_faults(option.text);
              }});
  table.value("--chaos-seed", "N", "Seed for the moments and the ranks of faults",
              number_target(launch.chaos_seed, 0, std::numeric_limits<long>::max()));
}

void check_meeting(const OptionTable& table, LaunchOptions& launch) {
  check_nodes(table, launch);
  const bool several = launch.several_nodes();
  if (several && launch.master_port == 0) launch.master_port = kMasterPort;
  check_endpoint(table, launch);
  // The id is shown in tables, names of sockets and messages.
  if (launch.run_id != launcher::neutralise_in_line(launch.run_id)) {
    table["--rdzv-id"].refuse("a name without control characters");
  }
  // Agents that are started separately must use the same id.
  if (launch.run_id.empty()) launch.run_id = several ? "none" : random_hex(8);
}

void require_meeting(const OptionTable& table, const LaunchOptions& launch) {
  if (!launch.several_nodes()) return;
  if (table["--rdzv-endpoint"].given() || table["--master-addr"].given()) return;
  throw UsageError(
      fmt::format("{}: '{}' needs a meeting point: give every machine the same --rdzv-endpoint "
                  "HOST:{} (or --master-addr HOST), a host that all of them can reach; or let one "
                  "launcher start all machines: --hosts",
                  table["--nnodes"].source, table["--nnodes"].text, kEndpointPort));
}

void check_chaos(const OptionTable& table, const LaunchOptions& launch) {
  for (const launcher::Fault& fault : launch.chaos) {
    // The ranks of other nodes are not known here; the closing table reports a fault that hit no
    // rank (launcher/job/chaos_injector.h).
    if (launch.several_nodes() || !fault.rank || *fault.rank < launch.num_local_ranks) continue;
    throw UsageError(fmt::format("{}: there is no rank {}: the last one is {}",
                                 table["--chaos"].source, *fault.rank, launch.num_local_ranks - 1));
  }
}

}  // namespace paceline::apps
