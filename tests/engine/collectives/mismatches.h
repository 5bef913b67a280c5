#pragma once

// Pairs of calls that do not match, and what every group must make of each: a typed error on every
// rank at once, never a wrong sum, never a hang. Suites run them over transports, algorithms and
// hosts.

#include <chrono>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tests/harness/thread_ranks.h"

namespace paceline {

// The promise is one second. Nothing waits for the deadline, which is far behind it, but before the
// watchdog's: its error says which ranks wait, and for which.
inline constexpr std::chrono::seconds kLimit{10};
inline constexpr std::chrono::seconds kNever{30};

inline std::size_t world_of(const ProcessGroup& group) {
  return static_cast<std::size_t>(group.world_size());
}

// Makes one rank's calls. `least` is added to every count, for ways that only large calls take.
struct Caller {
  ProcessGroup& group;
  std::size_t least = 0;

  void all_reduce(std::size_t count, ReduceOp op = ReduceOp::kSum) const;
  // On memory that is reduced in place, which must be held back as well.
  void all_reduce_symmetric(std::size_t count, ReduceOp op = ReduceOp::kSum) const;
  void divided_mean(Op op, std::uint32_t divisor) const;
  void all_reduce_integers(std::size_t count) const;
  void all_reduce_doubles(std::size_t count) const;
  // As many bytes as `count` floats have.
  void all_reduce_as_doubles(std::size_t count) const;
  void all_reduce_async(std::size_t count) const;
  void broadcast(int root, std::size_t count = 1000) const;
  void broadcast_async(int root) const;
  void reduce(int root, ReduceOp op = ReduceOp::kSum) const;
  void all_gather(std::size_t count) const;
  void gather(int root, std::size_t count = 1000) const;
  void scatter(int root, std::size_t count = 1000) const;
  void reduce_scatter(std::size_t count, ReduceOp op = ReduceOp::kSum) const;
  void all_to_all(std::size_t count) const;
  // 20 for each rank, `moved` of which the first rank has and the second has not.
  void all_gather_v(std::size_t moved) const;
  void reduce_scatter_v(std::size_t moved, ReduceOp op = ReduceOp::kSum) const;

 private:
  template <class T>
  void sum_of(std::size_t count) const;
  std::vector<float> floats(std::size_t count) const;
  std::vector<float> blocks(std::size_t count) const;  // one for each rank
  std::vector<std::size_t> counts(std::size_t moved) const;
};

struct Mismatch {
  const char* name;
  void (*odd)(const Caller& call);
  void (*even)(const Caller& call);
};

std::span<const Mismatch> mismatches();

struct MismatchRun {
  int world = 2;
  int odd = 0;  // the rank that calls what is odd; the others call what is even
  std::size_t least = 0;
  std::string over;  // what the times are printed with
  harness::RanksOptions options;
  // Looks, on every rank, at the group that is about to make the calls.
  std::function<void(const ProcessGroup& group)> inspect;
};

void expect_noticed(const Mismatch& mismatch, MismatchRun run);

// Prints how long after the last rank had come each rank heard of it, and forgets it.
void print_noticed();

// That `group` takes the algorithm for every operation that it serves, whatever the count.
void expect_algorithm(const ProcessGroup& group, Algorithm algorithm);

}  // namespace paceline
