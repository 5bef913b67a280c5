#pragma once

// A whole measurement of collectives: starts the ranks of every contestant, lets the contestants
// take turns (turn_taking.h), and collects the figures. A point of the measurement is an operation
// and a size.

#include <optional>
#include <string>
#include <vector>

#include "paceline/engine/collectives/selection/algorithm.h"

#include "apps/bench/operation.h"
#include "apps/bench/turn_taking.h"

namespace paceline::bench {

struct SessionOptions : TurnOptions {
  std::vector<Operation> ops;
  int num_ranks = 2;
  std::vector<std::size_t> sizes;
  Dtype dtype = Dtype::kFloat32;
  std::optional<Placement> placement;  // if the operation supports it, otherwise the usual one
  // The kinds to measure. A library without symmetric memory is measured with ordinary memory only.
  std::vector<MemoryKind> memory = {MemoryKind::kSymmetric};
  bool fresh = true;
  bool check = false;
  int calls = 200;                     // the most calls of a contestant in a round
  std::optional<Algorithm> algorithm;  // for Paceline's messages, where the algorithm can be used
  bool bind = true;
};

using SessionEvents = TurnEvents<Row>;

// A contestant with one kind of memory.
struct CollectiveEntrant : Entrant {
  MemoryKind memory = MemoryKind::kOrdinary;
  bool is_first = true;  // `memory` is the contestant's first kind
  Row row;               // of the current point
};

class Session : public TurnTaking<Report, Turn, CollectiveEntrant> {
 public:
  // Starts all contestants and waits until their libraries are initialised. Requires: called on the
  // main thread, before there are other threads. Error if Paceline's own ranks do not start; other
  // contestants that do not start are added to Report::missing.
  explicit Session(SessionOptions options);

 private:
  void add_entrants();
  Turn turn_for(Operation op, std::size_t bytes) const;
  std::size_t bytes_of_point(const Turn& point) const;
  std::vector<Turn> points() const override;
  std::string text_of(const Turn& point) const override;
  bool enter(CollectiveEntrant& entrant, const Turn& point) override;
  std::string take_turn(CollectiveEntrant& entrant, const Turn& point, bool counts) override;
  std::vector<Row> finished_rows(const Turn& point) const override;

  const SessionOptions options_;
};

// The bytes that all ranks together use at the largest point, so that a measurement that does not
// fit can be refused before anything starts.
std::size_t bytes_needed(const SessionOptions& options);

}  // namespace paceline::bench
