#include <mutex>
#include <numeric>
#include <optional>
#include <thread>
#include <vector>

#include "paceline/engine/collectives/group/init.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/thread.h"
#include "paceline/engine/store/memory_store.h"
#include "paceline/launcher/spawn/spawn.h"

namespace paceline {
namespace {

// The failure of a rank that the others' failures follow from.
class FirstFailure {
 public:
  void record(int rank, const Error& error) {
    const std::lock_guard lock(mutex_);
    if (!error_)
      error_.emplace(error.code(),
                     fmt::format("spawn: rank {} failed first: {}", rank, error.what()));
  }
  void rethrow() const {
    if (error_) throw Error(*error_);
  }

 private:
  std::mutex mutex_;
  std::optional<Error> error_;
};

void run_rank(ProcessGroup& group, const std::function<void(ProcessGroup&)>& body,
              FirstFailure& first) {
  try {
    body(group);
    return;
  } catch (const Error& error) {
    first.record(group.rank(), error);
  } catch (...) {
    first.record(group.rank(), Error(ErrorCode::kAborted, describe_current_exception()));
  }
  group.abort("its function ended with an exception");
}

void spawn_threads(int num_ranks, const std::function<void(ProcessGroup&)>& body,
                   const SpawnOptions& options) {
  const auto store = std::make_shared<MemoryStore>();
  const auto secret = Secret::generate();
  std::vector<int> ranks(static_cast<std::size_t>(num_ranks));
  std::iota(ranks.begin(), ranks.end(), 0);
  FirstFailure first;
  std::vector<std::jthread> threads;
  for (const int rank : ranks) {
    threads.push_back(start_thread("rank-" + std::to_string(rank), [&, rank] {
      LaunchEnvironment who;
      who.rank = who.local_rank = rank;
      who.world_size = who.local_world_size = num_ranks;
      try {
        ProcessGroup group(
            {who, store, secret}, "world", ranks,
            {.timeout = options.timeout, .link = {.transport = TransportKind::kLoopback}});
        run_rank(group, body, first);
      } catch (const Error& error) {
        first.record(rank, error);
      } catch (...) {
        first.record(rank, Error(ErrorCode::kSystem, describe_current_exception()));
      }
    }));
  }
  threads.clear();
  first.rethrow();
}

}  // namespace

void spawn(int num_ranks, const std::function<void(ProcessGroup& group)>& body,
           const SpawnOptions& options) {
  check(num_ranks >= 1, "spawn: {} ranks; at least 1 is needed", num_ranks);
  if (options.kind == RanksAs::kThreads) {
    spawn_threads(num_ranks, body, options);
    return;
  }
  spawn(
      num_ranks, [&](int) { body(*init_process_group()); }, options);
}

}  // namespace paceline
