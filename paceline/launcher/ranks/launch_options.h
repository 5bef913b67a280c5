#pragma once

// The options of `paceline run`, parsed and checked, and the plan that is made from them. Values.

#include <chrono>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "paceline/engine/core/system/socket.h"
#include "paceline/launcher/messages/job_terms.h"
#include "paceline/launcher/messages/keep_alive.h"
#include "paceline/launcher/messages/remote_frames.h"
#include "paceline/launcher/placement/placement.h"
#include "paceline/launcher/ranks/chaos_plan.h"

namespace paceline::launcher {

// The streams of one local rank that appear on the console.
struct ConsoleStreams {
  bool out = false;
  bool err = false;
  bool operator==(const ConsoleStreams&) const = default;
};

// How the nodes of a job find and watch each other.
struct MeetingOptions {
  Endpoint endpoint;            // where the first agents meet
  std::optional<bool> is_host;  // whether this node's agent listens there; nullopt: node 0's does,
                                // or the agent of the host with this address
  std::chrono::nanoseconds join_timeout = std::chrono::minutes(10);
  std::chrono::nanoseconds last_call_timeout = std::chrono::seconds(3);
  std::chrono::milliseconds keep_alive_interval = KeepAlive{}.interval;
  std::optional<int> keep_alive_attempts;  // nullopt: keep_alive() chooses
};

struct LaunchOptions : JobTerms {
  std::vector<std::string> command;  // the program as typed, then its arguments, untouched

  int num_local_ranks = 1;
  std::optional<int> node_rank;  // nullopt: in the order in which nodes arrive
  MeetingOptions meeting;        // for several nodes
  bool fork_server = true;       // after a restart, ranks are forked from seeds (rank_seeds.h)
  std::vector<Fault> chaos;      // faults to inject
  std::uint64_t chaos_seed = 0;

  std::string master_addr = "127.0.0.1";
  std::uint16_t master_port = 0;  // 0: a free port
  std::string role = kNoRole;     // of this node's ranks, if the job has no roles, ...
  bool role_serves = false;       // ... and whether the job ends without waiting for them
  std::string stack_helper;       // the path of the command paceline (diagnosis/stack_reader.h)

  std::string backend;   // the ranks' PACELINE_BACKEND; empty: not changed
  bool encrypt = false;  // sets the ranks' PACELINE_ENCRYPT; false: not changed
  std::optional<int> threads_per_rank;
  Binding binding;
  bool report_bindings = false;

  std::string timeline;                    // path of the trace to write at the end; empty: none
  std::string log_dir;                     // empty: a temporary one, removed after success
  std::vector<ConsoleStreams> console;     // one per local rank
  bool show_rank_0 = false;                // show all output of rank 0, on whichever node it runs
  std::vector<ConsoleStreams> redirected;  // kept off the console; one per local rank, or empty
  bool prefix_lines = false;               // "[3] " before every console line
  bool terminal = false;                   // the console is a terminal that can move its cursor

  std::chrono::nanoseconds shutdown_timeout = std::chrono::seconds(10);

  std::chrono::nanoseconds hang_timeout = std::chrono::seconds(30);  // 0: hangs are not reported
  bool kill_hanging = false;  // after a hang, ends the ranks that block the others
  // A rank that keeps the others waiting for this long is reported; 0: never.
  std::chrono::nanoseconds straggler_patience = std::chrono::seconds(30);

  std::optional<HostPart> part;  // set if a launcher on another host started this one, ...
  int notices_fd = -1;           // ... and where it reads this launcher's messages, as frames

  const JobTerms& terms() const { return *this; }
  bool several_nodes() const { return num_nodes > 1; }
  // With --hosts, most losses of hosts are noticed because a connection breaks. So if the loss of a
  // host ends the job, silence between the agents counts as a loss only after a longer time.
  KeepAlive keep_alive() const {
    const int usual = part && !may_restart() ? 60 : KeepAlive{}.max_attempts;
    return {meeting.keep_alive_interval, meeting.keep_alive_attempts.value_or(usual)};
  }
  int world_size() const { return part ? ranks_before(num_nodes) : num_nodes * num_local_ranks; }
  int rank_of(int local_rank) const {
    const int node = node_rank.value_or(0);
    return (part ? ranks_before(node) : node * num_local_ranks) + local_rank;
  }
  // The prefix of each line of the rank with that name: "[3] ", "[host:trainer1] " or "".
  std::string prefix_of(const std::string& name) const {
    if (!prefix_lines) return "";
    return "[" + (part ? part->host + ":" : "") + name + "] ";
  }
  // Whether other jobs may have the same id. Agents that are started separately need the same id;
  // if the user gave none, it is torchrun's default, "none".
  bool run_id_is_shared() const { return several_nodes() && run_id == "none"; }
  // The place of this node in the first generation. If the nodes have different numbers of ranks,
  // requires `part`.
  NodePlace place() const {
    return {.node_rank = node_rank.value_or(0),
            .num_nodes = num_nodes,
            .first_rank = rank_of(0),
            .world_size = world_size(),
            .roles = roles.empty() ? Roles{{role, world_size(), role_serves}} : roles,
            .restarts = restarts};
  }
  // The streams of a local rank that the console shows. `rank` is that rank's number in the world.
  ConsoleStreams streams_shown(int local_rank, int rank) const {
    const auto index = static_cast<std::size_t>(local_rank);
    ConsoleStreams shown = index < console.size() ? console[index] : ConsoleStreams{};
    if (show_rank_0 && rank == 0) shown = {true, true};
    if (index >= redirected.size()) return shown;
    return {shown.out && !redirected[index].out, shown.err && !redirected[index].err};
  }

 private:
  // The number of ranks on the hosts whose numbers are below `host`. Requires: part is set.
  int ranks_before(int host) const {
    const auto begin = part->ranks_per_host.begin();
    return std::accumulate(begin, begin + host, 0);
  }
};

// The plan of `paceline run`.
struct LaunchPlan {
  LaunchOptions options;
  std::string program_path;  // the path of options.command[0]
  Placement placement;
};

}  // namespace paceline::launcher
