#include "paceline/engine/tables/table_snapshot.h"

#include <algorithm>
#include <utility>

#include "paceline/engine/core/check.h"
#include "paceline/engine/tables/row_update.h"

namespace paceline::tables {

TableSnapshot::TableSnapshot(TableCut cut) : cut_(std::move(cut)) {
  row_of_.reserve(cut_.ids.size());
  for (const std::uint8_t is_admitted : cut_.admitted) {
    row_of_.push_back(num_rows_ * cut_.row_floats);
    num_rows_ += is_admitted;
  }
}

void TableSnapshot::pull(std::span<const Id> ids, std::span<float> values) const {
  const std::size_t width = cut_.width;
  check(values.size() == ids.size() * width,
        "pull: a snapshot: {} ids of width {} need {} floats, not {}", ids.size(), width,
        ids.size() * width, values.size());
  const Settings initial{
      .width = cut_.width, .seed = cut_.seed, .initial_range = cut_.initial_range};
  for (std::size_t i = 0; i < ids.size(); ++i) {
    float* const to = values.data() + i * width;
    const auto found = std::lower_bound(cut_.ids.begin(), cut_.ids.end(), ids[i]);
    const auto place = static_cast<std::size_t>(found - cut_.ids.begin());
    if (found == cut_.ids.end() || *found != ids[i] || cut_.admitted[place] == 0) {
      write_initial_values(initial, ids[i], to);
    } else {
      std::copy_n(cut_.rows.data() + row_of_[place], width, to);
    }
  }
}

}  // namespace paceline::tables
