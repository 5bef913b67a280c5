#pragma once

// What sessions of every kind have in common: their contestants start together, the report names
// those that did not start, and one that computes while others are on turn.
//
// Thread safety: none; the main thread.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/bench/rank_set.h"
#include "apps/bench/report.h"

namespace paceline::bench {

// Ends a measurement from inside.
struct Interrupted {};

// The head of a report, with what this moment and machine say.
ReportHead begin_report(const std::string& command, const std::string& version,
                        const launcher::Environment& variables);

// Where its program is; nothing when it cannot take part, and the report says why. Error when it is
// Paceline's own.
std::optional<Located> locate_or_note(const CatalogEntry& entry, const std::string& programs,
                                      ReportHead& report);

// Starts all and waits until their libraries are up. Those that do not come up are removed, and the
// report says why; Error when it is Paceline's own. Requires: no other threads in this process yet.
void start_all(std::vector<std::unique_ptr<RankSet>>& sets, ReportHead& report);

// For the report of a measurement that was interrupted, or ended by an error, after `done` of
// `wanted` points.
std::string interruption_note(std::size_t done, std::size_t wanted);
std::string failure_note(std::size_t done, std::size_t wanted, const Error& error);

// After a turn.
void note_restlessness(const RankSet& set, ReportHead& report);

}  // namespace paceline::bench
