#pragma once

// Finds out which ranks block a job that hangs, from digests of the flight records of all hosts
// (engine/telemetry/flight_file.h).

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/telemetry/flight_file.h"
#include "paceline/launcher/messages/agent_messages.h"

namespace paceline::launcher {

// A digest is the part of its ranks' flight records that an agent sends to the coordinator: for
// each rank, its groups, the last collective that it finished in each group, its unfinished
// operations (at most 16), and its newest operation. From digests explain() can determine where
// each rank is; they are not sufficient to find a straggler.
//
// A digest contains no clock readings, only how long ago each event was. The times that the reader
// computes on its own clocks are late by the time that the text took to arrive.
//
// encode_digest() leaves out the ranks whose records do not fit in 384 KiB of text. A reader
// notices that their records are missing.
std::string encode_digest(std::span<const Flight> flights);
// Error(kCorrupt) when the text is not a digest.
std::vector<Flight> decode_digest(const std::string& text);

// The line "paceline: no progress for 3.1 s: rank 1 never entered ..."; empty if the order has no
// sentence.
std::string hang_text(const HangOrder& hang);

// Explains a hang of the whole job. One agent notices that its ranks wait; the rank that blocks
// them may be on another host, where no rank waits. So every other agent is asked once where its
// ranks are, and the answers together show which rank is missing. The inquiry belongs to the job's
// coordinator (launcher/coordination/coordinator.h). In a job on one node no agent is asked.
//
//   agent that sees a standstill ──Whereabouts──▶ inquiry ──LookOrder──▶ every other agent
//   every agent ◀──HangOrder── inquiry ◀──Whereabouts── every other agent
//
// If the records show no blocking rank, other signs are used (QuietRanks in hang_watch.h): ranks
// that have not arrived at the first rendezvous, ranks that are stopped, or the fact that all ranks
// are idle after steps were made.
//
// The report names the host of an agent that does not answer within 2 s. A rank is not blamed if
// the missing answer might show that another rank blocks it. If a rank began an operation within
// the hang limit (Whereabouts::limit), the job makes progress, and nothing is reported. After a
// report has named the blocking ranks, further reports of the same standstill are ignored.
//
// Cost: nothing while the job makes progress. In a standstill, each inquiry takes one answer of at
// most 384 KiB from each agent. Inquiries are repeated until a blocking rank is known.
//
// Thread safety: none. Callers pass the time.
class HangInquiry {
 public:
  using Agent = int;
  using Moment = AwakeClock::time_point;

  // Call when a generation begins, with its agents and the names of their hosts. Forgets all other
  // agents.
  void begin(int generation, std::map<Agent, std::string> agents);
  // Processes a report of an agent. Error(kCorrupt) if the report is invalid.
  void take(Agent from, const Whereabouts& report, Moment now);
  void lose(Agent agent);
  // Call when next_deadline() has passed.
  void tick(Moment now);
  Moment next_deadline() const { return round_is_open_ ? until_ : Moment::max(); }
  // Returns the orders since the last call.
  std::vector<Mail> take_mail() { return outbox_.take(); }

 private:
  struct Answer {
    std::vector<Flight> flights;
    Standstill standstill;
    std::uint64_t progress = 0;  // operations and steps of the agent's ranks
  };

  void open(Agent from, double limit, Moment now);
  void judge_if_complete();
  void judge();
  struct Judgement {
    HangOrder order;
    bool names = false;  // the order names the ranks that block the others
  };
  std::optional<Judgement> judge_records(const std::vector<Flight>& flights) const;
  std::optional<Judgement> judge_signs() const;
  Judgement missing_in_meeting(const Standstill& signs) const;
  Judgement idle_ranks(const Standstill& signs) const;
  Standstill signs_of_all() const;
  bool was_reported(const std::map<Agent, std::uint64_t>& progress) const;
  std::string silent_hosts() const;

  int generation_ = 0;
  std::map<Agent, std::string> hosts_;
  Outbox outbox_;
  bool round_is_open_ = false;
  int round_ = 0;
  double limit_ = 0;  // seconds
  Moment until_;
  std::map<Agent, Answer> answers_;
  // Each agent's Answer::progress at the time of the last report, and whether that report named a
  // rank.
  std::map<Agent, std::uint64_t> reported_progress_;
  bool decided_ = false;
};

}  // namespace paceline::launcher
