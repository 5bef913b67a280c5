#pragma once

// Why a generation of a job failed: the first rank that ended badly, or a host that was lost. One
// value from the agent that saw it, through the coordinator, to the restart policy and the job's
// exit code.

#include <chrono>
#include <csignal>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/system/socket.h"
#include "paceline/launcher/messages/roles.h"

namespace paceline::launcher {

struct Failure {
  enum class Kind { kRank, kHost };

  Kind kind = Kind::kRank;
  std::string cause;        // "rank 1 on host a: exit code 3", "host b is lost: ..."
  std::string end;          // the same without its place, which may differ next time: "exit code 3"
  int exit_code = 0;        // that the job ends with, if it ends because of this
  int signal = 0;           // that killed the rank; 0: it exited by itself
  std::string reason;       // "out of memory"; empty: nothing that short is known
  bool on_purpose = false;  // by --chaos
  // By the monotonic clock of whoever reports; whoever takes the report brings it to its own clock,
  // where it may be off by `clock_error`, or drops it.
  std::optional<std::chrono::nanoseconds> at;
  std::chrono::nanoseconds clock_error{};  // not sent

  // The program has no part in it.
  bool blameless() const { return on_purpose || kind == Kind::kHost; }
  bool operator==(const Failure&) const = default;
};

// What the agents of a job's nodes tell their coordinator, and what it orders. Values, and their
// form as text: one JSON object each, {"type": "failure", ...}. Times are durations, but for the
// moment of a failure, which counts only where the two clocks have been compared.

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
  bool stopped_as_agreed = false;  // before their work was done (engine/core/error.h)
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
// (launcher/coordination/job_control.h).
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
// (launcher/diagnosis/hang_watch.h).
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
  std::string digest;  // launcher/diagnosis/hang_inquiry.h
  Standstill standstill{};
  bool operator==(const Whereabouts&) const = default;
};

// Of one rank, in the last time (launcher/diagnosis/straggler_watch.h).
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

// Orders on their way from whoever decides for a job (launcher/coordination/coordinator.h,
// launcher/diagnosis/hang_inquiry.h, launcher/diagnosis/straggler_watch.h) to its agents.
//
// Thread safety: none.

struct Mail {
  int to = -1;  // an agent
  Order order;
};

class Outbox {
 public:
  // In place: GCC 12 takes the move of a whole Order for one of uninitialised bytes.
  template <class One>
  void send(int to, One order) {
    Mail& mail = mail_.emplace_back();
    mail.to = to;
    mail.order.emplace<One>(std::move(order));
  }
  // Orders since the last call.
  std::vector<Mail> take() { return std::exchange(mail_, {}); }
  void clear() { mail_.clear(); }

 private:
  std::vector<Mail> mail_;
};

// How a job ended, as one process of its launcher knows it, and the exit code that follows. A
// value.

struct JobEnd {
  bool agreed = false;         // all ranks stopped before their work was done, as they had agreed
  std::optional<int> decided;  // the exit code that the coordinator gave to all nodes
  std::optional<int> failed;   // that of a failure here, which the coordinator may not know of
  int stop_signal = 0;         // the first that ended the launcher; 0: none
  bool abandoned = false;      // the supervisor is gone

  // 0, that of the first failure, kStoppedAsAgreed, or 128 + N for signal N.
  int exit_code() const {
    if (agreed) return kStoppedAsAgreed;
    if (decided && stop_signal == 0) return *decided;
    if (failed) return *failed;
    if (stop_signal != 0) return 128 + stop_signal;
    return abandoned ? 128 + SIGKILL : 0;
  }
};

}  // namespace paceline::launcher
