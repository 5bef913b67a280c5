#pragma once

// Finds out together with all hosts which ranks block a job that hangs, from digests of their
// flight records (engine/telemetry/flight_file.h).

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

// A digest is the part of its ranks' flight records that an agent sends to other hosts: of each its
// groups, the last operation that it finished in each, and the operations that it has not finished.
// That is enough for explain() to say which rank is where; not enough to find a straggler.
//
// No clock reading travels, only how long ago each event was. The reader gets times on its own
// clocks, late by as long as the text was on its way.
//
// Leaves out ranks beyond 384 KiB of text; a reader sees that their records are missing.
std::string encode_digest(std::span<const Flight> flights);
// Error(kCorrupt) when the text is no digest.
std::vector<Flight> decode_digest(const std::string& text);

// "paceline: no progress for 3.1 s: rank 1 never entered ...", a line; empty without a sentence.
std::string hang_text(const HangOrder& hang);

// Explains a hang of the whole job. One agent sees its ranks wait; the rank that blocks them may be
// on another host, where no rank waits. So every agent is asked once where its ranks are, and their
// answers together name the rank that is missing. The job's coordinator holds it
// (launcher/coordination/coordinator.h); in a job on one node it asks the only agent.
//
//   agent that sees a standstill ──Whereabouts──▶ inquiry ──LookOrder──▶ every other agent
//   every agent ◀──HangOrder── inquiry ◀──Whereabouts── every other agent
//
// Where no record names a rank, other signs do (QuietRanks in hang_watch.h): ranks that are missing
// in the first meeting, that are stopped, or that all stand still without computing after they made
// steps.
//
// An agent that does not answer within 2 s is named, and no rank is blamed whom its ranks might
// excuse. If any rank began an operation within the time that the first agent waited, the job
// moves, and nothing is reported. Each standstill is decided once, however many agents report it.
//
// Cost: nothing while the job moves. In a standstill one answer of at most 384 KiB from each agent.
//
// Thread safety: none. Time comes in as an argument.
class HangInquiry {
 public:
  using Agent = int;
  using Moment = AwakeClock::time_point;

  // The agents of a generation that begins, by the names of their hosts. Forgets all others.
  void begin(int generation, std::map<Agent, std::string> agents);
  // Error(kCorrupt) when the report makes no sense.
  void take(Agent from, const Whereabouts& report, Moment now);
  void lose(Agent agent);
  // Call when next_deadline() has passed.
  void tick(Moment now);
  Moment next_deadline() const { return round_is_open_ ? until_ : Moment::max(); }
  // Orders since the last call.
  std::vector<Mail> take_mail() { return outbox_.take(); }

 private:
  struct Answer {
    std::vector<Flight> flights;
    Standstill standstill;
    std::uint64_t progress = 0;  // of all its ranks together; the same as long as none moves
  };

  void open(Agent from, double limit, Moment now);
  void judge_if_complete();
  void judge();
  struct Judgement {
    HangOrder order;
    bool names = false;  // it names the ranks that block the others
  };
  std::optional<Judgement> judge_records(const std::vector<Flight>& flights) const;
  std::optional<Judgement> judge_signs() const;
  Judgement missing_in_meeting(const Standstill& signs) const;
  Judgement idle_ranks(const Standstill& signs) const;
  Standstill signs_of_all() const;
  bool is_said_of(const std::map<Agent, std::uint64_t>& progress) const;
  std::string silent_hosts() const;

  int generation_ = 0;
  std::map<Agent, std::string> hosts_;
  Outbox outbox_;
  bool round_is_open_ = false;
  int round_ = 0;
  double limit_ = 0;  // seconds
  Moment until_;
  std::map<Agent, Answer> answers_;
  // The standstill of the last report (Answer::progress), and whether that named a rank.
  std::map<Agent, std::uint64_t> said_of_;
  bool decided_ = false;
};

}  // namespace paceline::launcher
