#include "paceline/engine/tables/row_checks.h"

#include "paceline/engine/core/check.h"
#include "paceline/engine/optim_kernels/kernels.h"

namespace paceline::tables {

void check_size(const BatchUse& use, std::size_t num_ids, std::size_t num_floats) {
  check(num_ids < ~std::uint32_t{0}, "worker {}: {}: table '{}': {} ids are too many", use.worker,
        use.operation, use.table, num_ids);
  check(num_floats == num_ids * use.width,
        "worker {}: {}: table '{}' has rows of {} floats, so {} ids need {} floats, not {}",
        use.worker, use.operation, use.table, use.width, num_ids, num_ids * use.width, num_floats);
}

void check_finite(const BatchUse& use, std::span<const Id> ids, std::span<const float> gradients) {
  if (optim::all_finite(gradients.data(), static_cast<std::int64_t>(gradients.size()))) return;
  for (std::size_t i = 0; i < ids.size(); ++i)
    check(optim::all_finite(gradients.data() + i * use.width, use.width),
          "worker {}: {}: table '{}': the gradient of row {} (place {} of the batch) is not "
          "finite; no row was changed",
          use.worker, use.operation, use.table, ids[i], i);
}

}  // namespace paceline::tables
