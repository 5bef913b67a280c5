#pragma once

// The reports of a job's agents to its coordinator, and its orders to them, as values and as text:
// one JSON object each, {"type": "failure", ...}. Times are durations, except for the moment of a
// failure, which is used only if the two hosts' clocks have been compared.

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
#include "paceline/launcher/messages/job_terms.h"

namespace paceline::launcher {

// Why a generation of a job failed: the first rank that failed, or a host that was lost. Agents
// report failures of ranks; the coordinator itself notices that a host is lost. The coordinator
// derives its restart decision and the job's exit code from this value.
struct Failure {
  enum class Kind { kRank, kHost };

  Kind kind = Kind::kRank;
  std::string cause;        // "rank 1 on host a: exit code 3", "host b is lost: ..."
  std::string end;          // the cause without rank and host, to compare with later failures
  int exit_code = 0;        // of the job, if it ends because of this failure
  int signal = 0;           // the signal that killed the rank; 0: it exited by itself
  std::string reason;       // "out of memory"; empty: no short reason is known
  bool on_purpose = false;  // --chaos caused it
  // The moment of the failure on the monotonic clock of the reporting agent. The coordinator
  // converts it to its own clock, with an error of at most `clock_error`, or drops it.
  std::optional<std::chrono::nanoseconds> at;
  std::chrono::nanoseconds clock_error{};  // largest error of `at`; not sent

  // Whether something other than the program caused the failure.
  bool blameless() const { return on_purpose || kind == Kind::kHost; }
  bool operator==(const Failure&) const = default;
};

// The services that an agent offers to the next generation, in case rank 0 runs on its node.
struct Offer {
  Endpoint store;   // the node already listens there
  Endpoint master;  // a port that is kept free for rank 0
  bool operator==(const Offer&) const = default;
};

// --- Reports ---

// An agent's first report: it wants to join the job.
struct Joining {
  JobTerms terms;  // from this node's own options
  std::string host;
  int num_ranks = 1;
  std::string role = kNoRole;    // of the node's ranks, if the terms have no roles
  bool role_serves = false;      // RoleCount::serves of that role
  std::optional<int> node_rank;  // set if the user gave one
  Endpoint stand_in;             // where this agent would lead the job as a successor
  Offer offer;
  int next_generation = 0;  // 1 + the agent's last generation in this job; 0: it was in none
  bool operator==(const Joining&) const = default;
};

// The first failure of a rank of the node.
struct RankFailure {
  int generation = 0;
  Failure failure;
  bool operator==(const RankFailure&) const = default;
};

// Every rank of the node has ended without a failure.
struct Finished {
  int generation = 0;
  bool stopped_as_agreed = false;  // ranks ended by an agreed stop (engine/core/error.h)
  bool operator==(const Finished&) const = default;
};

// The job waits for only some of the node's ranks. All of these have ended without a failure, and
// the others still serve.
struct WorkDone {
  int generation = 0;
  bool operator==(const WorkDone&) const = default;
};

// No process of the generation is left on the node.
struct Stopped {
  int generation = 0;
  std::chrono::milliseconds lived{};
  std::optional<std::uint64_t> steps;  // the most that a rank made; nullopt: not counted
  Offer offer;
  bool operator==(const Stopped&) const = default;
};

// The node's launcher has received a signal to stop, and the node leaves the job.
struct Leaving {
  int signal = 0;
  bool operator==(const Leaving&) const = default;
};

// The coordinator has been silent for too long; this agent looks for another coordinator, or
// becomes the coordinator.
struct GivingUp {
  std::chrono::milliseconds silence{};
  bool operator==(const GivingUp&) const = default;
};

// A sign of life over a connection of its own, because the agent's first connection is silent
// (launcher/coordination/job_control.h).
struct Alive {
  Endpoint stand_in;  // the agent's; identifies it to the coordinator
  bool operator==(const Alive&) const = default;
};

// A coordinator that has too few nodes sends this question to another coordinator, which may have
// more nodes of the same job.
struct Looking {
  std::string version;
  std::string run_id;
  int num_nodes = 0;  // how many nodes the asking coordinator has
  Endpoint leader;    // the address at which its own agents reach it
  Endpoint asked;     // the address to which the question is sent
  bool operator==(const Looking&) const = default;
};

// The signs that the ranks of a node make no progress, in addition to their flight records
// (launcher/diagnosis/hang_watch.h).
struct Standstill {
  double seconds = 0;        // since any rank last began an operation or made a step
  std::uint64_t steps = 0;   // made by all ranks together in this generation
  bool idle = false;         // no rank uses more than 2% of a cpu
  std::vector<int> running;  // ranks whose processes have not ended
  std::vector<int> stopped;  // ranks that are stopped, by SIGSTOP or by a terminal
  // Ranks of any node that wait in the first rendezvous, and ranks that have not arrived there.
  // Empty except on the node of rank 0.
  std::vector<int> waiting, missing;
  bool operator==(const Standstill&) const = default;
};

// Where the ranks of the node are (launcher/diagnosis/hang_inquiry.h).
struct Whereabouts {
  int generation = 0;
  int round = 0;       // of the LookOrder that this answers; 0: the agent reports a hang unasked
  double limit = 0;    // this many seconds without progress are a hang
  std::string digest;  // see launcher/diagnosis/hang_inquiry.h
  Standstill standstill{};
  bool operator==(const Whereabouts&) const = default;
};

// How one rank spent the last seconds (launcher/diagnosis/straggler_watch.h).
struct RankShare {
  int rank = 0;
  double inside = 0;  // the share of the time that it spent inside operations
  int num_operations = 0;
  bool operator==(const RankShare&) const = default;
};

struct Shares {
  int generation = 0;
  std::vector<RankShare> ranks;  // the ranks of this node
  bool operator==(const Shares&) const = default;
};

using Report = std::variant<Joining, RankFailure, Finished, Stopped, Leaving, GivingUp, Whereabouts,
                            Shares, Alive, Looking, WorkDone>;

// --- Orders ---
struct StartOrder {
  NodePlace place;
  Endpoint store;                   // the ranks' store, on node 0
  Endpoint master;                  // for programs that create a store of their own
  std::string note;                 // why this generation starts; empty for the first
  std::vector<Endpoint> stand_ins;  // where to look for the next coordinator, in order
  bool operator==(const StartOrder&) const = default;
};

struct StopOrder {
  std::string reason;  // "rank 3 on host b: exit code 1"
  // Whether a rank or a host failed; nullopt when a node joins or leaves. After the loss of a host
  // no operation that needs all ranks can complete any more.
  std::optional<Failure::Kind> failed;
  bool operator==(const StopOrder&) const = default;
};

// The node waits: for a place in the job, or for other nodes that the job needs.
struct WaitOrder {
  std::string reason;
  bool operator==(const WaitOrder&) const = default;
};

// The job is over.
struct EndOrder {
  int exit_code = 0;
  std::string cause;   // Failure::cause, or the loss of a host
  std::string reason;  // why no generation follows, or why none was started
  bool alone = false;  // only this node ends; the others continue
  bool operator==(const EndOrder&) const = default;
};

// Asks where the ranks of the node are.
struct LookOrder {
  int round = 0;
  bool operator==(const LookOrder&) const = default;
};

// The job hangs.
struct HangOrder {
  int generation = 0;
  double seconds = 0;      // since any rank last began an operation or made a step
  std::string sentence;    // which rank is where; empty: another node prints it
  std::vector<int> ranks;  // the ranks that block the others; empty: not known
  int witness = -1;        // a rank that waits for them; -1: none
  bool operator==(const HangOrder&) const = default;
};

// A rank of this node keeps the others waiting.
struct StragglerOrder {
  int generation = 0;
  int rank = 0;
  double inside = 0, others = 0;  // its share of time inside operations, and the next lowest
  bool operator==(const StragglerOrder&) const = default;
};

// The rank of this node that failed was the first rank of the job to fail. If all nodes share one
// console, only the report about this rank is printed.
struct FirstFailureOrder {
  int generation = 0;
  bool operator==(const FirstFailureOrder&) const = default;
};

// The answer to Alive.
struct HeardOrder {
  Endpoint stand_in;  // copied from the question
  bool operator==(const HeardOrder&) const = default;
};

// The job continues under another coordinator. This order is sent to agents, and as the answer to
// Looking.
struct FollowOrder {
  Endpoint leader;
  bool operator==(const FollowOrder&) const = default;
};

// All ranks for which the job waits have ended without a failure; the agent ends the others.
struct WindUpOrder {
  int generation = 0;
  bool operator==(const WindUpOrder&) const = default;
};

using Order = std::variant<StartOrder, StopOrder, WaitOrder, EndOrder, LookOrder, HangOrder,
                           StragglerOrder, FirstFailureOrder, HeardOrder, FollowOrder, WindUpOrder>;

inline constexpr std::size_t kMaxAgentMessage = 1 << 20;

std::string encode(const Report& report);
std::string encode(const Order& order);
// Error(kCorrupt) when the text is not such a message.
Report decode_report(const std::string& text);
Order decode_order(const std::string& text);

// An order that is to be sent to an agent.
struct Mail {
  int to = -1;  // the agent
  Order order;
};

// The orders that an inquiry of the coordinator has issued (hang_inquiry.h and straggler_watch.h in
// launcher/diagnosis/).
//
// Thread safety: none.
class Outbox {
 public:
  // Makes the order in place, because GCC 12 warns that the move of a whole Order would read
  // uninitialised bytes.
  template <class One>
  void send(int to, One order) {
    Mail& mail = mail_.emplace_back();
    mail.to = to;
    mail.order.emplace<One>(std::move(order));
  }
  // Returns the orders since the last call.
  std::vector<Mail> take() { return std::exchange(mail_, {}); }
  void clear() { mail_.clear(); }

 private:
  std::vector<Mail> mail_;
};

// A value: how the job ended as far as one process of the launcher knows, and the exit code that
// follows.
struct JobEnd {
  bool agreed = false;         // ranks ended by an agreed stop, and none failed
  std::optional<int> decided;  // the exit code that the coordinator gave to all nodes
  std::optional<int> failed;   // the exit code of a failure that the coordinator may not know of
  int stop_signal = 0;         // the first signal that asked the job to end; 0: none
  bool abandoned = false;      // the supervisor has ended

  // The job's exit code: 0; the code of the failure that ended the job (128 + N for a signal);
  // kStoppedAsAgreed after an agreed stop; 128 + N if signal N asked the launcher to stop; or
  // 128 + SIGKILL if the supervisor has ended.
  int exit_code() const {
    if (agreed) return kStoppedAsAgreed;
    if (decided && stop_signal == 0) return *decided;
    if (failed) return *failed;
    if (stop_signal != 0) return 128 + stop_signal;
    return abandoned ? 128 + SIGKILL : 0;
  }
};

}  // namespace paceline::launcher
