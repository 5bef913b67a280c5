#pragma once

// Pairs of calls that do not match, and the required outcome in every group: a typed error at once
// on every rank, never a wrong sum, never a hang. Test suites run them over transports, algorithms
// and hosts.

#include <chrono>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tests/harness/thread_ranks.h"

namespace paceline {

// Errors are promised within 1 s; the tests allow kLimit. The calls' deadline comes much later, so
// that no test passes by timing out, but before the watchdog's, because a call that times out
// reports which ranks wait for which.
inline constexpr std::chrono::seconds kLimit{10};
inline constexpr std::chrono::seconds kNever{30};

inline std::size_t world_of(const ProcessGroup& group) {
  return static_cast<std::size_t>(group.world_size());
}

// Makes one rank's calls. `least` is added to every count, to reach the algorithms for large calls.
struct Caller {
  ProcessGroup& group;
  std::size_t least = 0;

  void all_reduce(std::size_t count, ReduceOp op = ReduceOp::kSum) const;
  // Reduces memory that Paceline could reduce in place; such a call must not begin either.
  void all_reduce_symmetric(std::size_t count, ReduceOp op = ReduceOp::kSum) const;
  void divided_mean(Op op, std::uint32_t divisor) const;
  void all_reduce_integers(std::size_t count) const;
  void all_reduce_doubles(std::size_t count) const;
  // Reduces as many bytes as `count` floats have.
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
  // 20 elements for each rank; of these, `moved` belong to the first rank instead of the second.
  void all_gather_v(std::size_t moved) const;
  void reduce_scatter_v(std::size_t moved, ReduceOp op = ReduceOp::kSum) const;

 private:
  template <class T>
  void sum_of(std::size_t count) const;
  std::vector<float> floats(std::size_t count) const;
  std::vector<float> blocks(std::size_t count) const;  // one block for each rank
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
  int odd = 0;  // the rank that makes the odd call; the others make the even one
  std::size_t least = 0;
  std::string over;  // the label under which the times are printed
  harness::RanksOptions options;
  // Called on every rank with the group that is about to make the calls.
  std::function<void(const ProcessGroup& group)> inspect;
};

void expect_noticed(const Mismatch& mismatch, MismatchRun run);

// Prints how long after the last rank's arrival each rank noticed the mismatch, and clears the
// list.
void print_noticed();

// Expects `group` to choose the algorithm for every operation that it supports, for any count.
void expect_algorithm(const ProcessGroup& group, Algorithm algorithm);

}  // namespace paceline
