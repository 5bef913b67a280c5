#include "paceline/training/parallel/fully_shard.h"

#include "paceline/engine/core/check.h"

namespace paceline {

DistributedDataParallelOptions sharded_options(optim::Optimizer& optimizer,
                                               const FullyShardOptions& options) {
  check(options.stage >= 1 && options.stage <= 3,
        "fully_shard: stage {}: there are 1 (the optimizer's state is divided), 2 (gradients, too) "
        "and 3 (parameters, too)",
        options.stage);
  check(options.unit_bytes > 0, "fully_shard: units of 0 bytes");
  check(options.units.empty() || options.stage >= 2,
        "fully_shard: units are of gradients, which stage {} does not divide", options.stage);
  check(!options.divide_hosts || options.stage == 3,
        "fully_shard: stage {} leaves the parameters to each rank; hosts divide them in stage 3",
        options.stage);
  DistributedDataParallelOptions all = options.data_parallel;
  all.optimizer = &optimizer;
  all.shard = {.one_copy = options.stage == 3,
               .unit_bytes = options.stage >= 2 ? options.unit_bytes : 0,
               .units = options.units,
               .divide_hosts = options.divide_hosts};
  return all;
}

}  // namespace paceline
