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
    // The order in which a rank adds up its own sums depends on the number of threads.
    own = fmt::format("{} logical shards, {} threads", logical_shards, at::get_num_threads());
  }
  const auto all = all_gather_object(group, own);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    check(all[rank] == own,
          "{}: DistributedDataParallel has {} here and {} on rank {}: the bits of a model "
          "depend on both; give every rank the same (paceline run --logical-shards L "
          "--threads-per-rank T)",
          group.self(), own, all[rank], rank);
  }
  if (!has_shards() || (device.is_cpu() && group.backend() == "paceline")) return;
  fail(ErrorCode::kUnsupported,
       "{}: logical shards need sums in the engine's order: parameters on the CPU and backend "
       "paceline, not {} and {}",
       group.self(), device.str(), group.backend());
}

// Only the loop decides which pass ends a step, and its decision must agree with the number of
// passes.
void StepPasses::require_place() const {
  if (!has_shards() || synchronize_ == averages()) return;
  fail(ErrorCode::kInvalid,
       "{}: with {} logical shards a step is {} backward passes on each of {} ranks, and the "
       "last one averages; this is pass {} of a step, and it {}. Take batches from a DataLoader "
       "with as many logical shards, take one backward pass for each, and call "
       "set_requires_gradient_sync(batch.ends_step) before the forward pass, as "
       "train::TrainingRun does",
       group_.self(), logical_shards_, own_count_, group_.world_size(), num_done_ + 1,
       synchronize_ ? "averages" : "does not");
}

}  // namespace paceline
