#include "apps/meeting_options.h"

#include <limits>
#include <sstream>

#include <fmt/format.h>

#include "paceline/core/error.h"
#include "paceline/core/secret.h"
#include "paceline/core/socket.h"
#include "paceline/output/line_formatter.h"

#include "apps/usage_error.h"

namespace paceline::apps {
namespace {

using launch::LaunchOptions;

constexpr long kMaxNodes = 65536;
constexpr long kMaxRestarts = 1'000'000;
constexpr double kMaxSecondsToMeet = 86400.0 * 365;
constexpr long kMasterPort = 29500;    // torchrun's
constexpr long kEndpointPort = 29400;  // torchrun's for c10d
constexpr const char* kEndpoint = "--rdzv-endpoint";
constexpr const char* kConf = "--rdzv-conf";

void check_nodes(const Checker& checker, const RunTexts& texts, LaunchOptions& options) {
  const std::string& text = texts.nnodes;
  const auto colon = text.find(':');
  const auto number = [&](const std::string& part) {
    if (part.find_first_not_of("0123456789") != std::string::npos || part.empty()) {
      checker.refuse("--nnodes", text, "a whole number or MIN:MAX");
    }
    return static_cast<int>(checker.integer("--nnodes", part, 1, kMaxNodes));
  };
  if (!text.empty()) {
    options.min_nodes = number(text.substr(0, colon));
    options.num_nodes =
        colon == std::string::npos ? options.min_nodes : number(text.substr(colon + 1));
  }
  if (options.min_nodes > options.num_nodes) {
    throw UsageError(fmt::format("{}: '{}': MIN is above MAX", checker.source("--nnodes"), text));
  }
  if (!texts.node_rank.empty()) {
    options.node_rank =
        static_cast<int>(checker.integer("--node-rank", texts.node_rank, 0, options.num_nodes - 1));
  }
  if (texts.standalone && options.several_nodes()) {
    throw UsageError(fmt::format("--standalone is for one node, but {} is {}",
                                 checker.source("--nnodes"), text));
  }
}

void check_backend(const Checker& checker, const std::string& name) {
  if (name.empty() || name == "paceline" || name == "c10d" || name == "static") return;
  if (name.starts_with("etcd")) {
    throw UsageError(
        fmt::format("{}: '{}': the machines meet at an agent of the job here, no etcd "
                    "is needed; leave the option out",
                    checker.source("--rdzv-backend"), name));
  }
  checker.refuse("--rdzv-backend", name, "paceline, c10d or static");
}

Endpoint endpoint_of(const Checker& checker, const std::string& text, bool several) {
  const bool has_port = text.find(':') != std::string::npos &&
                        (text.front() != '[' || text.find("]:") != std::string::npos);
  Endpoint endpoint;
  try {
    endpoint = parse_endpoint(has_port ? text : fmt::format("{}:{}", text, kEndpointPort),
                              checker.source(kEndpoint));
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
  if (several && endpoint.port == 0) {
    checker.refuse(kEndpoint, text, "HOST:PORT with a port from 1 to 65535");
  }
  return endpoint;
}

// torchrun's words; those that concern only its own stores are accepted and mean nothing here.
void apply_conf(const Checker& checker, const std::string& text, launch::MeetingOptions& meeting) {
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    const auto equals = item.find('=');
    const std::string key = item.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : item.substr(equals + 1);
    const auto seconds = [&] {
      return checker.seconds(kConf, value, kMaxSecondsToMeet, key + "=");
    };
    if (key == "join_timeout" || key == "timeout") {
      meeting.join_timeout = seconds();
    } else if (key == "last_call_timeout") {
      meeting.last_call_timeout = seconds();
    } else if (key == "keep_alive_interval") {
      meeting.keep_alive_interval = std::chrono::ceil<std::chrono::milliseconds>(seconds());
      if (meeting.keep_alive_interval.count() == 0) checker.refuse(kConf, item, "above 0");
    } else if (key == "keep_alive_max_attempt") {
      meeting.keep_alive_attempts =
          static_cast<int>(checker.integer(kConf, value, 1, 100000, "", key + "="));
    } else if (key == "is_host") {
      const bool yes = value == "true" || value == "True" || value == "1";
      const bool no = value == "false" || value == "False" || value == "0";
      if (!yes && !no) checker.refuse(kConf, item, "is_host=true or is_host=false");
      meeting.is_host = yes;
    } else if (key != "close_timeout" && key != "read_timeout" && key != "store_type") {
      checker.refuse(kConf, item,
                     "join_timeout, last_call_timeout, keep_alive_interval, "
                     "keep_alive_max_attempt or is_host with =VALUE");
    }
  }
}

void check_endpoint(const Checker& checker, const RunTexts& texts, LaunchOptions& options) {
  const bool several = options.several_nodes();
  options.meeting.endpoint = {options.master_addr, options.master_port};
  if (texts.rdzv_endpoint.empty()) return;
  const Endpoint endpoint = endpoint_of(checker, texts.rdzv_endpoint, several);
  if (!several) return;  // one node has nobody to meet
  if (!texts.master_addr.empty() || !texts.master_port.empty()) {
    throw UsageError(fmt::format("{} and --master-addr or --master-port exclude each other",
                                 checker.source(kEndpoint)));
  }
  options.meeting.endpoint = endpoint;
}

// It stands in tables, in names of sockets and in messages.
void check_id(const Checker& checker, const std::string& id) {
  if (id == launch::neutralise_in_line(id)) return;
  checker.refuse("--rdzv-id", id, "a name without control characters");
}

}  // namespace

void check_meeting(const Checker& checker, const RunTexts& texts, LaunchOptions& options) {
  check_nodes(checker, texts, options);
  // torchrun: --standalone wins over the rendezvous flags.
  const std::string port = texts.standalone ? "" : texts.master_port;
  if (!texts.master_addr.empty() && !texts.standalone) options.master_addr = texts.master_addr;
  const bool several = options.several_nodes();
  options.master_port = static_cast<std::uint16_t>(
      checker.integer_or("--master-port", port, several ? kMasterPort : 0, 1, 65535));
  check_backend(checker, texts.rdzv_backend);
  check_endpoint(checker, texts, options);
  apply_conf(checker, texts.rdzv_conf, options.meeting);
  check_id(checker, texts.rdzv_id);
  options.run_id = texts.rdzv_id;
  // Agents that are started apart must mean the same job.
  if (options.run_id.empty()) options.run_id = several ? "none" : random_hex(8);
}

void check_restarts(const Checker& checker, const RunTexts& texts, LaunchOptions& options) {
  options.restarts.max_restarts = static_cast<int>(
      checker.integer_or("--max-restarts", texts.max_restarts, 0, 0, kMaxRestarts));
  if (!texts.restart_window.empty()) {
    options.restarts.window =
        checker.seconds("--restart-window", texts.restart_window, kMaxSecondsToMeet);
  }
  if (!texts.fork_server.empty() && texts.fork_server != "on" && texts.fork_server != "off") {
    checker.refuse("--fork-server", texts.fork_server, "on or off");
  }
  options.fork_server = texts.fork_server != "off";
  if (!texts.monitor_interval.empty()) {
    checker.seconds("--monitor-interval", texts.monitor_interval, kMaxSecondsToMeet);
  }
}

void check_chaos(const Checker& checker, const RunTexts& texts, LaunchOptions& options) {
  if (!texts.chaos.empty()) options.chaos = launch::parse_faults(texts.chaos);
  for (const launch::Fault& fault : options.chaos) {
    // How many ranks other nodes have is not known here; the closing table tells (job/rehearsal.h).
    if (options.several_nodes() || !fault.rank || *fault.rank < options.num_local_ranks) continue;
    throw UsageError(fmt::format("{}: there is no rank {}: the last one is {}",
                                 checker.source("--chaos"), *fault.rank,
                                 options.num_local_ranks - 1));
  }
  options.chaos_seed = static_cast<std::uint64_t>(
      checker.integer_or("--chaos-seed", texts.chaos_seed, 0, 0, std::numeric_limits<long>::max()));
}

}  // namespace paceline::apps
