#pragma once

// The options of a table of rows: the optimizer that runs where the rows are, and the consistency
// of workers that train them together.

#include <cstdint>
#include <string>
#include <variant>

namespace paceline::tables {

// Any 64-bit number, for example a hash of a feature, so that no vocabulary is needed.
using Id = std::int64_t;

// SGD, Adam and Adagrad compute what torch::optim's optimizers of these names compute. A row takes
// one step for each push that contains its id or, in a synchronous table, for each clock with such
// a push. The optimizer's state for a row is kept beside the row.
struct SGD {
  double lr = 0.01, momentum = 0, weight_decay = 0;
};
struct Adam {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
};
struct Adagrad {
  double lr = 0.01, eps = 1e-10, weight_decay = 0;
};
// Adagrad with one accumulator for each row, the sum of its mean squared gradients (4 bytes).
struct RowAdagrad {
  double lr = 0.01, eps = 1e-10;
};
using RowOptimizer = std::variant<SGD, Adam, Adagrad, RowAdagrad>;

// States which pushes of other workers a pull may miss. A worker's clock counts its ticks. Workers
// that have left or are lost are ignored.
class Consistency {
 public:
  // A pull at clock c sees all pushes up to clock c - 1 and none of clock c: a tick waits for all
  // workers, and then each row that any of them pushed takes one step with the sum of their
  // gradients. The gradients are added in the order of the workers' names, as in an all-reduce.
  static Consistency synchronous() { return {Kind::kSynchronous, 0}; }
  // A pull at clock c sees the worker's own pushes and all pushes of all present workers up to
  // clock c - s - 1.
  static Consistency bounded(std::uint32_t s) { return {Kind::kBounded, s}; }
  // A pull sees the worker's own pushes, and the pushes of other workers that have arrived.
  static Consistency asynchronous() { return {Kind::kAsynchronous, 0}; }

  enum class Kind : std::uint32_t { kSynchronous, kBounded, kAsynchronous };
  Kind kind() const { return kind_; }
  std::uint32_t bound() const { return bound_; }  // s
  std::string text() const;                       // "bounded(4)"

 private:
  Consistency(Kind kind, std::uint32_t bound) : kind_(kind), bound_(bound) {}
  Kind kind_;
  std::uint32_t bound_;
};

// Every worker that opens a table must give the same options.
struct RowOptions {
  std::uint32_t width = 0;  // float32 elements of a row, 1 to 16,384
  RowOptimizer optimizer = RowAdagrad{};
  Consistency consistency = Consistency::asynchronous();
  std::uint64_t capacity = 1'000'000;  // rows; memory is taken as rows appear
  // A new row has uniform random values in [-initial_range, initial_range), which depend only on
  // the seed and the id.
  float initial_range = 0.01F;
  std::uint64_t seed = 0;
  // A row is admitted by the push that contains its id for the `admit_after`th time. Earlier pushes
  // are only counted: their gradients are dropped, and a pull gets the initial values. A table has
  // room for `capacity` + `candidates` ids in all, or for `capacity` ids if `admit_after` is 1.
  std::uint32_t admit_after = 1;
  std::uint64_t candidates = 1'000'000;
  // A row that was neither pulled nor pushed for more than this number of ticks begins again with
  // its initial values; 0: rows never expire.
  std::uint64_t expire_after = 0;
};

}  // namespace paceline::tables
