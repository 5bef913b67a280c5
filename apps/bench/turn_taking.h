#pragma once

// Starts all contestants together and lets them take turns; used for measurements of collectives
// and of calls.
//
// Every point is measured in several rounds, and every contestant has one turn in each round. So
// other load on the machine affects all contestants alike, and ratios are calculated within a
// round. Only the contestant whose turn it is computes; the others sleep, and the report names each
// contestant that did not sleep. The first round of each point is a warm-up and is not counted.
//
// A contestant that fails is left out from then on, and the report gives the reason. If Paceline
// itself fails, the measurement ends with its Error; report() contains the rows measured before.
//
// Thread safety: none. Use it on the main thread.

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
  std::vector<std::string> peers;  // contestants other than paceline, by their names in the catalog
  std::string programs;            // folder of the contestants' programs
  launcher::Environment variables;  // to add to the ranks' environment
  int rounds = 5;
  std::chrono::seconds turn_limit{120};
  std::vector<std::string> notes;  // the first notes of the report
  std::string command, version;    // for the report: the command as typed, and Paceline's version
};

template <class Row>
struct TurnEvents {
  // Called when all rounds of a point are done.
  std::function<void(const std::vector<Row>& rows)> on_rows;
  // Called before each turn. If it returns true, the measurement ends, and a note in the report
  // says so.
  std::function<bool()> is_interrupted;
};

// A contestant in one of the forms in which it is measured, for example with one kind of memory.
struct Entrant {
  RankSet* set = nullptr;  // null: the entrant has been left out
  bool takes_part = true;  // at the current point
};

// Thrown to end a measurement early.
struct Interrupted {};

// The head of a report, with the date, the machine and the values of `options`.
ReportHead begin_report(const TurnOptions& options);
// Calls `add` for Paceline and for each peer whose program is found, and adds the other peers to
// report.missing. Error if Paceline's own program is missing.
void find_contestants(
    const TurnOptions& options, Subject subject, ReportHead& report,
    const std::function<void(const CatalogEntry& entry, const Located& located)>& add);
// Starts all sets and waits until their libraries are initialised. Removes sets that fail, and adds
// the reason to report.missing; if Paceline's own set fails, throws its Error. Requires: this
// process has no other threads yet.
void start_all(std::vector<std::unique_ptr<RankSet>>& sets, ReportHead& report);
// Call this after a turn: notes what the library lacks (TurnResult::lacks), or that the contestant
// computed during the turns of others.
void note_turn(Entrant& entrant, const std::string& lacks, ReportHead& report);
// Call this in the handler of `error`: leaves the entrant out from now on and adds a note to the
// report; rethrows the error if the entrant is Paceline.
void leave_out(Entrant& entrant, const std::string& point, const Error& error, ReportHead& report);
// Notes that the measurement ended early, after `done` of `wanted` points. `error`: null if it was
// interrupted.
void note_end(std::size_t done, std::size_t wanted, const Error* error, ReportHead& report);

template <class AnyReport, class Point, class AnyEntrant>
class TurnTaking {
 public:
  using Row = typename decltype(AnyReport::rows)::value_type;

  virtual ~TurnTaking() = default;
  TurnTaking(const TurnTaking&) = delete;
  TurnTaking& operator=(const TurnTaking&) = delete;

  // The report with all rows that are finished so far.
  const AnyReport& report() const { return report_; }
  // Measures all points and returns the report.
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
  // The point as text for messages: "all_reduce of 64 KiB".
  virtual std::string text_of(const Point& point) const = 0;
  // Prepares the entrant's rows for the point. Returns whether the entrant takes part at that
  // point.
  virtual bool enter(AnyEntrant& entrant, const Point& point) = 0;
  // Takes a turn, and adds the figures to the entrant's rows if `counts`. Returns what the library
  // lacks for the point, or "".
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
