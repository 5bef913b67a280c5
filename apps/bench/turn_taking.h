#pragma once

// Contestants start together and take turns, in measurements of collectives and of calls alike.
//
// Order: point by point, round by round, every contestant once. So what else the machine does hits
// all of them alike, and ratios are taken within a round. Only the contestant on turn computes; the
// others sleep, and the report names one that did not. The first round of each point warms up and
// is not counted.
//
// A contestant that fails is left out from then on, and the report says why; when it is Paceline
// itself, the measurement ends with its Error, and report() has what was measured before.
//
// Thread safety: none; the main thread.

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apps/bench/catalog.h"
#include "apps/bench/rank_set.h"
#include "apps/bench/report.h"

namespace paceline::bench {

struct TurnOptions {
  std::vector<std::string> peers;   // names of the catalog, beside paceline
  std::string programs;             // where the contestants' programs are
  launcher::Environment variables;  // for the ranks, in addition
  int rounds = 5;
  std::chrono::seconds turn_limit{120};
  std::vector<std::string> notes;  // for the report, from the beginning
  std::string command, version;    // likewise: as typed, and Paceline's
};

template <class Row>
struct TurnEvents {
  // When all rounds of a point are done.
  std::function<void(const std::vector<Row>& rows)> on_rows;
  // Asked before each turn: true ends the measurement there, and a note says so.
  std::function<bool()> is_interrupted;
};

// A contestant in one of the forms that are measured side by side.
struct Entrant {
  RankSet* set = nullptr;  // null: left out
  bool takes_part = true;  // at the point under way
};

// Ends a measurement from inside.
struct Interrupted {};

// The head of a report, with what this moment and machine say.
ReportHead begin_report(const TurnOptions& options);
// Calls `add` for Paceline and each peer whose program is found; the report names the others. Error
// when Paceline's own program is missing.
void find_contestants(
    const TurnOptions& options, Subject subject, ReportHead& report,
    const std::function<void(const CatalogEntry& entry, const Located& located)>& add);
// Starts all and waits until their libraries are up. Those that do not come up are removed, and the
// report says why; Error when it is Paceline's own. Requires: no other threads in this process yet.
void start_all(std::vector<std::unique_ptr<RankSet>>& sets, ReportHead& report);
// After a turn; `lacks` as in TurnResult.
void note_turn(Entrant& entrant, const std::string& lacks, ReportHead& report);
// In the handler of `error`: notes that the entrant is left out, or throws Paceline's error again.
void leave_out(Entrant& entrant, const std::string& point, const Error& error, ReportHead& report);
// For a measurement that ended early, after `done` of `wanted` points; `error`: null when it was
// interrupted.
void note_end(std::size_t done, std::size_t wanted, const Error* error, ReportHead& report);

template <class AnyReport, class Point, class AnyEntrant>
class TurnTaking {
 public:
  using Row = typename decltype(AnyReport::rows)::value_type;

  virtual ~TurnTaking() = default;
  TurnTaking(const TurnTaking&) = delete;
  TurnTaking& operator=(const TurnTaking&) = delete;

  // The participants, and the rows that are finished so far.
  const AnyReport& report() const { return report_; }
  // Measures all points.
  const AnyReport& run(const TurnEvents<Row>& events = {}) {
    const std::vector<Point> wanted = points();
    std::size_t done = 0;
    try {
      for (const Point& point : wanted) {
        take_turns(point, events);
        const std::vector<Row> rows = finished_rows(point);
        ++done;
        report_.rows.insert(report_.rows.end(), rows.begin(), rows.end());
        if (const std::string note = noise_note(rows); !note.empty()) report_.note_once(note);
        if (events.on_rows) events.on_rows(rows);
      }
    } catch (const Interrupted&) {
      note_end(done, wanted.size(), nullptr, report_);
    } catch (const Error& error) {
      note_end(done, wanted.size(), &error, report_);
      throw;
    }
    return report_;
  }

 protected:
  TurnTaking(const TurnOptions& options, launcher::Placement plan)
      : rounds_(options.rounds), plan_(std::move(plan)) {
    static_cast<ReportHead&>(report_) = begin_report(options);
  }

  virtual std::vector<Point> points() const = 0;
  // For messages: "all_reduce of 64 KiB".
  virtual std::string text_of(const Point& point) const = 0;
  // Whether the entrant takes part at the point; makes its rows empty.
  virtual bool enter(AnyEntrant& entrant, const Point& point) = 0;
  // Adds the figures to the entrant's rows if the turn `counts`. What the library lacks for the
  // point, or "".
  virtual std::string take_turn(AnyEntrant& entrant, const Point& point, bool counts) = 0;
  virtual std::vector<Row> finished_rows(const Point& point) const = 0;

  const int rounds_;
  const launcher::Placement plan_;
  AnyReport report_;
  std::vector<std::unique_ptr<RankSet>> sets_;
  std::vector<AnyEntrant> entrants_;

 private:
  void take_turns(const Point& point, const TurnEvents<Row>& events) {
    for (AnyEntrant& entrant : entrants_)
      entrant.takes_part = entrant.set != nullptr && enter(entrant, point);
    for (int round = 0; round <= rounds_; ++round) {
      for (AnyEntrant& entrant : entrants_) {
        if (!entrant.takes_part) continue;
        if (events.is_interrupted && events.is_interrupted()) throw Interrupted();
        try {
          note_turn(entrant, take_turn(entrant, point, round > 0), report_);
        } catch (const Error& error) {
          leave_out(entrant, text_of(point), error, report_);
        }
      }
    }
  }
};

}  // namespace paceline::bench
