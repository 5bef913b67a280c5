#pragma once

// Runs a function as several ranks from inside a program, without the command `paceline run`.
//
//   paceline::spawn(4, [](int rank) {
//     auto group = paceline::init_process_group();
//     ...
//   });
//   paceline::spawn(4, [](paceline::ProcessGroup& group) { ... }, {.as_threads = true});
//
// Ranks as threads share the process: they start in a millisecond, a debugger sees them all, and
// the thread sanitizer checks them. Ranks as processes resemble those of a job: each is a forked
// process with torchrun's variables and the job's store and secret in its environment, so code that
// looks for a launcher finds one. fork() copies only the calling thread, so call spawn() before
// LibTorch or OpenMP has started threads. The ranks die with the thread that called spawn().

#include <chrono>
#include <functional>

#include "paceline/engine/collectives/group/process_group.h"

namespace paceline {

struct SpawnOptions {
  // Ranks are threads of this process, for a body that takes its group; otherwise they are
  // processes, forked from this one.
  bool as_threads = false;
  // Ranks that still run after this time are killed.
  std::chrono::milliseconds timeout = std::chrono::hours(24);
  // Whether the other ranks get SIGTERM after the first failure, and SIGKILL after `grace`. Set it
  // to false to test how they handle the failure.
  bool stop_others = true;
  std::chrono::milliseconds grace = std::chrono::seconds(5);
};

// Returns when all ranks have returned from `body`. If a rank fails, throws an Error that names the
// first rank that failed and contains its message; its code is that of the rank's own Error, or
// kAborted. Error(kTimeout) names the ranks that had to be killed; Error(kInvalid) if `num_ranks`
// is below 1 or `as_threads` is set.
void spawn(int num_ranks, const std::function<void(int rank)>& body,
           const SpawnOptions& options = {});

// As above, but also creates the group of all ranks and passes it to `body`. Threads cannot be
// killed: for them `timeout` is the group's limit for a collective, and a rank that throws aborts
// the group, so the other ranks fail too.
void spawn(int num_ranks, const std::function<void(ProcessGroup& group)>& body,
           const SpawnOptions& options = {});

}  // namespace paceline
