#include "paceline/training/parallel/reducer/step_passes.h"

#include <string>

#include <fmt/format.h>

#include <ATen/Parallel.h>

#include "paceline/engine/collectives/group/object_collectives.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/logical_shards.h"
#include "paceline/training/tensor/compute_settings.h"
#include "paceline/training/tensor/settled_threads.h"

namespace paceline {

StepPasses::StepPasses(ProcessGroup& group, std::int64_t logical_shards, c10::Device device)
    : group_(group), logical_shards_(logical_shards), divisor_(group.world_size()) {
  std::string own = "no logical shards";
  if (has_shards()) {
    own_count_ = shards_of(logical_shards, group.world_size(), group.rank()).count;
    settle_thread_count();
    // The order of additions within a rank's own computation depends on its number of threads.
    own = fmt::format("{} logical shards, {} threads", logical_shards, at::get_num_threads());
  }
  const auto all = all_gather_object(group, own);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    check(all[rank] == own,
          "{}: DistributedDataParallel has {} here and {} on rank {}; the bits of the results "
          "depend on the numbers of logical shards and of threads, so give every rank the same "
          "numbers (paceline run --logical-shards L --threads-per-rank T)",
          group.self(), own, all[rank], rank);
  }
  if (!has_shards() || (device.is_cpu() && group.backend() == "paceline")) return;
  fail(ErrorCode::kUnsupported,
       "{}: logical shards need parameters on the CPU and the backend paceline, whose sums have a "
       "fixed order; here the parameters are on {} and the backend is {}",
       group.self(), device.str(), group.backend());
}

// The training loop says which pass ends a step (set_synchronize()); it must be the last of the
// step's own_count_ passes.
void StepPasses::require_position() const {
  if (!has_shards() || synchronize_ == averages()) return;
  fail(ErrorCode::kInvalid,
       "{}: with {} logical shards on {} ranks, the backward passes of a step on this rank are {}, "
       "and only the last pass averages; this is pass {} of a step, and it {}. Take batches from a "
       "DataLoader with as many logical shards, run one backward pass for each batch, and call "
       "set_requires_gradient_sync(batch.ends_step) before the forward pass, as "
       "train::TrainingRun does",
       group_.self(), logical_shards_, group_.world_size(), own_count_, num_done_ + 1,
       synchronize_ ? "averages" : "does not");
}

}  // namespace paceline
