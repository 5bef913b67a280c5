#pragma once

// A whole measurement: starts the ranks of every contestant, lets the contestants take turns, and
// collects the figures.
//
// Order: for each operation, for each size, round by round, every contestant once. So what else the
// machine does hits all of them alike, and ratios are taken within a round. Only the contestant on
// turn computes; the others sleep, and the session notes when one did not. The first round of each
// size warms up and is not counted.
//
// A contestant that fails is left out from then on, and the report says why; when it is Paceline
// itself, the session ends with its Error, and report() has what was measured before.

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "paceline/engine/collectives/selection/algorithm.h"

#include "apps/bench/operation.h"
#include "apps/bench/rank_set.h"
#include "apps/bench/report.h"

namespace paceline::bench {

struct SessionOptions {
  std::vector<Operation> ops;
  int num_ranks = 2;
  std::vector<std::size_t> sizes;
  Dtype dtype = Dtype::kFloat32;
  std::optional<Placement> placement;  // of operations that have it; their usual one otherwise
  std::vector<MemoryKind> memory = {MemoryKind::kSymmetric};  // of Paceline; others use ordinary
  bool fresh = true;
  bool check = false;
  int rounds = 5;
  int calls = 200;                     // of a contestant in a round, at most
  std::vector<std::string> peers;      // names of the catalog, beside paceline
  std::string programs;                // where the contestants' programs are
  launcher::Environment variables;     // for the ranks, in addition
  std::optional<Algorithm> algorithm;  // of Paceline's messages, wherever it serves
  std::vector<std::string> notes;      // for the report, from the beginning
  std::string command, version;        // likewise: as typed, and Paceline's
  std::chrono::seconds turn_limit{120};
  bool bind = true;
};

struct SessionEvents {
  // Before each turn; round 0 warms up.
  std::function<void(const std::string& label, Operation op, std::size_t bytes, int round)> on_turn;
  // When all rounds of an operation and size are done.
  std::function<void(const std::vector<Row>& rows)> on_rows;
  // Asked before each turn: true ends the measurement there, and a note says so.
  std::function<bool()> is_interrupted;
};

class Session {
 public:
  // Starts everybody and waits until the libraries are up. Requires: the main thread, and no others
  // yet. Error when Paceline's own ranks do not start; other contestants become Report::missing.
  explicit Session(SessionOptions options);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Who takes part, so far.
  const Report& report() const { return report_; }
  // Measures all there is to measure.
  const Report& run(const SessionEvents& events = {});

 private:
  struct Entrant;  // a contestant with one kind of memory

  void make_sets();
  void add_entrants();
  Turn turn_for(Operation op, std::size_t bytes) const;
  Row row_for(const Entrant& entrant, const Turn& turn) const;
  std::vector<std::size_t> sizes_for(Operation op) const;
  std::vector<Row> measure(Operation op, std::size_t bytes, const SessionEvents& events);
  void take_turn(Entrant& entrant, const Turn& turn, bool counts);
  std::vector<Row> finished_rows() const;

  const SessionOptions options_;
  const launcher::Placement plan_;
  Report report_;
  std::vector<std::unique_ptr<RankSet>> sets_;
  std::vector<Entrant> entrants_;
};

// Bytes that all ranks together hold at the largest point, and that the machine has free: for a
// refusal before anything starts.
std::size_t bytes_needed(const SessionOptions& options);
std::size_t bytes_available();

}  // namespace paceline::bench
