#pragma once

// What the agents of a job's nodes tell their coordinator, and what it orders. Values, and their
// form as text: one JSON object each, {"type": "failure", ...}. Times are durations, but for the
// moment of a failure, which counts only where the two clocks have been compared.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "paceline/engine/core/socket.h"
#include "paceline/launcher/messages/failure.h"
#include "paceline/launcher/messages/node_place.h"

namespace paceline::launcher {

// What an agent offers to the next generation, in case rank 0 runs at its node.
struct Offer {
  Endpoint store;   // it listens there already
  Endpoint master;  // kept free for rank 0
  bool operator==(const Offer&) const = default;
};

// --- Reports ---

// The first words of an agent.
struct Joining {
  std::string version;  // of Paceline; all agents need the same
  std::string run_id;
  std::string host;
  int num_ranks = 1;
  int min_nodes = 1, max_nodes = 1;
  std::int64_t logical_shards = 0;  // 0: none
  Roles roles;                      // of the whole job's ranks; empty: each node has one of its own
  std::string role = kNoRole;       // that one
  bool role_serves = false;         // RoleCount::serves of it
  std::optional<int> node_rank;     // when the user gave one
  Endpoint stand_in;                // where it would coordinate, should the coordinator vanish
  Offer offer;
  int next_generation = 0;  // above 0: it was in this job under a coordinator that vanished
  bool operator==(const Joining&) const = default;
};

// The first rank of a node that ended badly.
struct RankFailure {
  int generation = 0;
  Failure failure;
  bool operator==(const RankFailure&) const = default;
};

// Every rank of the node has ended in order.
struct Finished {
  int generation = 0;
  bool stopped_as_agreed = false;  // before their work was done (engine/core/exit_code.h)
  bool operator==(const Finished&) const = default;
};

// The ranks of the node that the job waits for have ended in order; others still serve.
struct WorkDone {
  int generation = 0;
  bool operator==(const WorkDone&) const = default;
};

// Nothing of the generation is left on the node.
struct Stopped {
  int generation = 0;
  std::chrono::milliseconds lived{};
  std::optional<std::uint64_t> steps;  // that its ranks made; nothing: they do not count them
  Offer offer;
  bool operator==(const Stopped&) const = default;
};

// The node's launcher was told to stop.
struct Leaving {
  int signal = 0;
  bool operator==(const Leaving&) const = default;
};

// The coordinator has been silent for too long; this agent looks for another one, or becomes it.
struct GivingUp {
  std::chrono::milliseconds silence{};
  bool operator==(const GivingUp&) const = default;
};

// A sign of life that takes a way of its own, because the agent's connection is silent
// (launcher/coordination/coordinator_link.h).
struct Alive {
  Endpoint stand_in;  // of the agent, by which the coordinator knows it
  bool operator==(const Alive&) const = default;
};

// A coordinator that has too few nodes asks this of one that may have more nodes of the same job.
struct Looking {
  std::string version;
  std::string run_id;
  int num_nodes = 0;  // that it has
  Endpoint leader;    // where its own agents reach it
  Endpoint asked;     // where it asks
  bool operator==(const Looking&) const = default;
};

// What shows besides their records that the ranks of a node stand still
// (launcher/diagnosis/quiet_ranks.h).
struct Standstill {
  double seconds = 0;        // since one of them began an operation or made a step
  std::uint64_t steps = 0;   // that they have made in this generation, together
  bool idle = false;         // none of them uses its cpu
  std::vector<int> running;  // those whose processes have not ended
  std::vector<int> stopped;  // by SIGSTOP or at a terminal
  std::vector<int> waiting;  // in the first meeting of all ranks, for ...
  std::vector<int> missing;  // ... these; both of any node, and known at one
  bool operator==(const Standstill&) const = default;
};

// Where the ranks of the node are (launcher/diagnosis/hang_inquiry.h).
struct Whereabouts {
  int generation = 0;
  int round = 0;     // of the LookOrder that this answers; 0: they stand still, and were not asked
  double limit = 0;  // seconds without progress that are a hang
  std::string digest;  // launcher/diagnosis/flight_digest.h
  Standstill standstill{};
  bool operator==(const Whereabouts&) const = default;
};

// Of one rank, in the last time (launcher/diagnosis/straggler_inquiry.h).
struct RankShare {
  int rank = 0;
  double inside = 0;  // of the time that its operations span
  int num_operations = 0;
  bool operator==(const RankShare&) const = default;
};

struct Shares {
  int generation = 0;
  std::vector<RankShare> ranks;  // of the node
  bool operator==(const Shares&) const = default;
};

using Report = std::variant<Joining, RankFailure, Finished, Stopped, Leaving, GivingUp, Whereabouts,
                            Shares, Alive, Looking, WorkDone>;

// --- Orders ---

struct StartOrder {
  NodePlace place;
  Endpoint store;                   // of the ranks, at node 0
  Endpoint master;                  // for programs that bring a store of their own
  std::string note;                 // why this generation is made; empty for the first
  std::vector<Endpoint> stand_ins;  // who coordinates next, in this order, should this one vanish
  bool operator==(const StartOrder&) const = default;
};

struct StopOrder {
  std::string reason;  // "rank 3 on host b: exit code 1"
  // What failed, unless a node joins or leaves. Without a host nothing that the ranks do together
  // comes to an end any more.
  std::optional<Failure::Kind> failed;
  bool operator==(const StopOrder&) const = default;
};

// There is no place for this node now, but there may be one.
struct WaitOrder {
  std::string reason;
  bool operator==(const WaitOrder&) const = default;
};

// The job is over.
struct EndOrder {
  int exit_code = 0;
  std::string cause;   // what went wrong: that of the rank's failure, or the loss of a host
  std::string reason;  // why it is not tried again, or not at all
  bool alone = false;  // for this node; the others go on
  bool operator==(const EndOrder&) const = default;
};

// Say where your ranks are.
struct LookOrder {
  int round = 0;
  bool operator==(const LookOrder&) const = default;
};

// The job stands still.
struct HangOrder {
  int generation = 0;
  double seconds = 0;      // since any rank began anything
  std::string sentence;    // who is where; empty: it has been said
  std::vector<int> ranks;  // that the others wait for; empty: not known
  int witness = -1;        // one that waits; -1: none
  bool operator==(const HangOrder&) const = default;
};

// A rank of this node keeps the others waiting.
struct StragglerOrder {
  int generation = 0;
  int rank = 0;
  double inside = 0, others = 0;  // its share of the time in operations, and the next lowest
  bool operator==(const StragglerOrder&) const = default;
};

// The rank of this node that failed was the first of the job: its report is to be shown where one
// console is all nodes'.
struct FirstFailureOrder {
  int generation = 0;
  bool operator==(const FirstFailureOrder&) const = default;
};

// The answer to Alive.
struct HeardOrder {
  Endpoint stand_in;  // of the agent that was heard
  bool operator==(const HeardOrder&) const = default;
};

// Says that the job goes on under another coordinator: sent to agents, and the answer to Looking.
struct FollowOrder {
  Endpoint leader;
  bool operator==(const FollowOrder&) const = default;
};

// All ranks that the job waits for have ended in order: end the others.
struct WindUpOrder {
  int generation = 0;
  bool operator==(const WindUpOrder&) const = default;
};

using Order = std::variant<StartOrder, StopOrder, WaitOrder, EndOrder, LookOrder, HangOrder,
                           StragglerOrder, FirstFailureOrder, HeardOrder, FollowOrder, WindUpOrder>;

inline constexpr std::size_t kMaxAgentMessage = 1 << 20;

std::string encode(const Report& report);
std::string encode(const Order& order);
// Error(kCorrupt) when the text is none.
Report decode_report(const std::string& text);
Order decode_order(const std::string& text);

}  // namespace paceline::launcher
