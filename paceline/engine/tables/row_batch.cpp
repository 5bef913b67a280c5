#include "paceline/engine/tables/row_batch.h"

#include <algorithm>
#include <bit>

#include "paceline/engine/core/check.h"
#include "paceline/engine/optim_kernels/kernels.h"
#include "paceline/engine/tables/host/row_update.h"

namespace paceline::tables {

void RowBatch::assign(std::span<const Id> ids) {
  ids_ = ids;
  first_.clear();
  last_.clear();
  next_.assign(ids.size(), kNone);
  index_.resize(ids.size());
  const std::size_t mask = std::bit_ceil(2 * ids.size() + 1) - 1;
  table_.assign(mask + 1, kNone);
  digest_ = ids.size();
  for (std::uint32_t place = 0; place < ids.size(); ++place) {
    const std::uint64_t hash = mix(static_cast<std::uint64_t>(ids[place]));
    digest_ = mix(digest_ ^ hash);
    std::size_t at = hash & mask;
    while (table_[at] != kNone && ids[first_[table_[at]]] != ids[place]) at = (at + 1) & mask;
    if (table_[at] == kNone) {
      table_[at] = static_cast<std::uint32_t>(first_.size());
      first_.push_back(place);
      last_.push_back(place);
    } else {
      next_[last_[table_[at]]] = place;
      last_[table_[at]] = place;
    }
    index_[place] = table_[at];
  }
}

bool RowBatch::contains(Id id) const {
  if (table_.empty()) return false;
  const std::size_t mask = table_.size() - 1;
  std::size_t at = mix(static_cast<std::uint64_t>(id)) & mask;
  while (table_[at] != kNone && ids_[first_[table_[at]]] != id) at = (at + 1) & mask;
  return table_[at] != kNone;
}

const float* RowBatch::gradient(std::size_t i, std::span<const float> gradients,
                                std::uint32_t width, std::vector<float>& sum) const {
  const auto of = [&](std::size_t place) { return gradients.data() + place * width; };
  std::size_t place = first_[i];
  if (next_[place] == kNone) return of(place);
  sum.assign(of(place), of(place) + width);
  for (place = next_[place]; place != kNone; place = next_[place])
    for (std::uint32_t j = 0; j < width; ++j) sum[j] += of(place)[j];
  return sum.data();
}

void check_size(const BatchUse& use, std::size_t num_ids, std::size_t num_floats) {
  check(num_ids < ~std::uint32_t{0}, "worker {}: {}: table '{}': {} ids are too many", use.worker,
        use.operation, use.table, num_ids);
  check(num_floats == num_ids * use.width,
        "worker {}: {}: table '{}' has rows of {} floats, so {} ids need {} floats, not {}",
        use.worker, use.operation, use.table, use.width, num_ids, num_ids * use.width, num_floats);
}

void check_finite(const BatchUse& use, Id id, std::size_t place, const float* gradient) {
  check(optim::all_finite(gradient, use.width),
        "worker {}: {}: table '{}': the gradient of row {} (place {} of the batch) is not "
        "finite; no row was changed",
        use.worker, use.operation, use.table, id, place);
}

void check_finite(const BatchUse& use, std::span<const Id> ids, std::span<const float> gradients) {
  if (optim::all_finite(gradients.data(), static_cast<std::int64_t>(gradients.size()))) return;
  for (std::size_t i = 0; i < ids.size(); ++i)
    check_finite(use, ids[i], i, gradients.data() + i * use.width);
}

}  // namespace paceline::tables
