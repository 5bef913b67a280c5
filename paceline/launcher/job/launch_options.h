#pragma once

// What `paceline run` was asked to do, parsed and checked. A value.

#include <chrono>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "paceline/engine/core/system/socket.h"
#include "paceline/launcher/coordination/restart_policy.h"
#include "paceline/launcher/job/chaos_plan.h"
#include "paceline/launcher/messages/keep_alive.h"
#include "paceline/launcher/messages/remote_frames.h"
#include "paceline/launcher/messages/roles.h"
#include "paceline/launcher/placement/placement.h"

namespace paceline::launcher {

// Which streams of one local rank appear on the console.
struct ConsoleStreams {
  bool out = false;
  bool err = false;
  bool operator==(const ConsoleStreams&) const = default;
};

// How the nodes of a job find and watch each other.
struct MeetingOptions {
  Endpoint endpoint;            // where the first agents meet
  std::optional<bool> is_host;  // whether this node's agent listens there; nothing: node 0's does,
                                // or that of the node with this address
  std::chrono::nanoseconds join_timeout = std::chrono::minutes(10);
  std::chrono::nanoseconds last_call_timeout = std::chrono::seconds(3);
  std::chrono::milliseconds keep_alive_interval = KeepAlive{}.interval;
  std::optional<int> keep_alive_attempts;  // nothing: as keep_alive() has it
};

struct LaunchOptions {
  std::vector<std::string> command;  // the program as typed, then its arguments, untouched

  int num_local_ranks = 1;
  int num_nodes = 1;             // the most of them
  int min_nodes = 1;             // the job goes on with that many
  std::optional<int> node_rank;  // nothing: as the nodes come
  MeetingOptions meeting;        // of several nodes
  RestartLimits restarts;
  bool fork_server = true;   // later generations start from loaded processes (rank_seeds.h)
  std::vector<Fault> chaos;  // done to the ranks on purpose
  std::uint64_t chaos_seed = 0;

  std::string master_addr = "127.0.0.1";
  std::uint16_t master_port = 0;  // 0: a free one
  std::string run_id;
  Roles roles;                 // of all ranks of the job; empty: those of this node have ...
  std::string role = kNoRole;  // ... this one, ...
  bool role_serves = false;    // ... for which the job does not wait
  std::string version;         // of Paceline; all nodes of a job need the same
  std::string
      stack_helper;  // launcher/diagnosis/stack_reader.h's: the path of the command paceline

  std::string backend;              // the ranks' PACELINE_BACKEND; empty: as it is
  bool encrypt = false;             // the ranks' PACELINE_ENCRYPT; false: as it is
  std::int64_t logical_shards = 0;  // the ranks' PACELINE_LOGICAL_SHARDS; 0: none
  std::optional<int> threads_per_rank;
  Binding binding;
  bool report_bindings = false;

  std::string timeline;                    // the trace to write at the end; empty: none
  std::string log_dir;                     // empty: a temporary one, removed after success
  std::vector<ConsoleStreams> console;     // one per local rank
  bool show_rank_0 = false;                // whole, on whichever node it runs
  std::vector<ConsoleStreams> redirected;  // kept off the console; one per local rank, or empty
  bool prefix_lines = false;               // "[3] " before every console line
  bool terminal = false;                   // the console is one that can be drawn on

  std::chrono::nanoseconds shutdown_timeout = std::chrono::seconds(10);

  std::chrono::nanoseconds hang_timeout = std::chrono::seconds(30);  // 0: never said
  bool kill_hanging = false;                                         // and ended, not only said
  // A rank that keeps the others waiting for so long is reported; 0: never.
  std::chrono::nanoseconds straggler_patience = std::chrono::seconds(30);

  std::optional<HostPart> part;  // when a launcher on another host started this one, ...
  int notices_fd = -1;           // ... which takes its words there, as frames

  bool several_nodes() const { return num_nodes > 1; }
  // There may be more than one generation.
  bool may_restart() const { return restarts.max_restarts > 0 || min_nodes < num_nodes; }
  // A connection of --hosts shows by itself, and at once, that a host is lost; silence between the
  // agents is taken for it only late where that ends the job.
  KeepAlive keep_alive() const {
    const int usual = part && !may_restart() ? 60 : KeepAlive{}.max_attempts;
    return {meeting.keep_alive_interval, meeting.keep_alive_attempts.value_or(usual)};
  }
  int world_size() const { return part ? ranks_before(num_nodes) : num_nodes * num_local_ranks; }
  int rank_of(int local_rank) const {
    const int node = node_rank.value_or(0);
    return (part ? ranks_before(node) : node * num_local_ranks) + local_rank;
  }
  // What stands before each line of a rank of that name: "[3] ", "[host:trainer1] " or nothing.
  std::string prefix_of(const std::string& name) const {
    if (!prefix_lines) return "";
    return "[" + (part ? part->host + ":" : "") + name + "] ";
  }
  // Several jobs may go by it: agents that are started apart need the same, and it is torchrun's
  // unless the user gave another.
  bool run_id_is_shared() const { return several_nodes() && run_id == "none"; }
  // In the first generation of a job whose nodes are all alike.
  NodePlace place() const {
    return {.max_restarts = restarts.max_restarts,
            .node_rank = node_rank.value_or(0),
            .num_nodes = num_nodes,
            .first_rank = rank_of(0),
            .world_size = world_size(),
            .roles = roles.empty() ? Roles{{role, world_size(), role_serves}} : roles};
  }
  // Of a local rank and its rank in the world.
  ConsoleStreams streams_shown(int local_rank, int rank) const {
    const auto index = static_cast<std::size_t>(local_rank);
    ConsoleStreams shown = index < console.size() ? console[index] : ConsoleStreams{};
    if (show_rank_0 && rank == 0) shown = {true, true};
    if (index >= redirected.size()) return shown;
    return {shown.out && !redirected[index].out, shown.err && !redirected[index].err};
  }

 private:
  // Of the hosts before number `host`. Requires: part.
  int ranks_before(int host) const {
    const auto begin = part->ranks_per_host.begin();
    return std::accumulate(begin, begin + host, 0);
  }
};

// What `paceline run` is about to do, decided. A value.

struct LaunchPlan {
  LaunchOptions options;
  std::string program_path;  // options.command[0], found
  Placement placement;
};

}  // namespace paceline::launcher
