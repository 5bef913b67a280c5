#include "paceline/launcher/process/descriptor_limit.h"

#include <sys/resource.h>

#include "paceline/engine/core/check.h"

namespace paceline::launcher {
namespace {

constexpr rlim_t kPerRank = 6;   // two pipes, a log, a pidfd; a seed's socket and pidfd
constexpr rlim_t kForAll = 128;  // ours, and connections of the store beyond one per rank

rlimit original_limit{};
bool raised = false;

}  // namespace

void require_descriptors(int num_local_ranks) {
  // One more per rank for its connection to the store.
  const rlim_t needed = (kPerRank + 1) * static_cast<rlim_t>(num_local_ranks) + kForAll;
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur >= needed) return;
  if (limit.rlim_max < needed) {
    fail(ErrorCode::kSystem,
         "{} ranks need {} open files, the hard limit is {}; raise it (ulimit -Hn {}) or start "
         "fewer "
         "ranks",
         num_local_ranks, needed, limit.rlim_max, needed);
  }
  original_limit = limit;
  limit.rlim_cur = needed;
  raised = setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

void restore_descriptor_limit() {
  if (raised) setrlimit(RLIMIT_NOFILE, &original_limit);
}

}  // namespace paceline::launcher
