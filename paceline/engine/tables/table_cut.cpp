#include "paceline/engine/tables/table_cut.h"

#include <algorithm>
#include <map>
#include <utility>

#include "paceline/engine/core/check.h"
#include "paceline/engine/tables/host/cutting.h"
#include "paceline/engine/tables/host/row_update.h"

namespace paceline::tables {

namespace {

TableCut without_rows(const TableCut& cut) {
  return {.width = cut.width,
          .optimizer = cut.optimizer,
          .row_floats = cut.row_floats,
          .seed = cut.seed,
          .initial_range = cut.initial_range,
          .lr = cut.lr,
          .now = cut.now};
}

void add_id(TableCut& to, const TableCut& from, std::size_t i, std::size_t row) {
  to.ids.push_back(from.ids[i]);
  to.sightings.push_back(from.sightings[i]);
  // The ages of rows do not change.
  const auto age = static_cast<std::int64_t>(from.now) - from.used[i];
  to.used.push_back(static_cast<std::int64_t>(to.now) - age);
  to.admitted.push_back(from.admitted[i]);
  if (from.admitted[i] == 0) return;
  const auto begin = from.rows.begin() + static_cast<std::ptrdiff_t>(row * from.row_floats);
  to.rows.insert(to.rows.end(), begin, begin + from.row_floats);
}

// Keeps, for each session, the record with the largest sequence.
void add_sessions(std::map<std::int64_t, std::vector<std::int64_t>>& all, const TableCut& part) {
  for (std::size_t i = 0; i + TableCut::kSessionNumbers <= part.sessions.size();
       i += TableCut::kSessionNumbers) {
    const auto begin = part.sessions.begin() + static_cast<std::ptrdiff_t>(i);
    std::vector<std::int64_t> record(begin, begin + TableCut::kSessionNumbers);
    auto& known = all[record[0]];
    if (known.empty() || known[1] < record[1]) known = std::move(record);
  }
}

}  // namespace

TableCut select(const TableCut& cut, const TakesId& takes) {
  TableCut some = without_rows(cut);
  std::size_t row = 0;
  for (std::size_t i = 0; i < cut.ids.size(); ++i) {
    if (takes(cut.ids[i])) add_id(some, cut, i, row);
    row += cut.admitted[i];
  }
  some.sessions = cut.sessions;
  return some;
}

TableCut merge(std::span<const TableCut> parts) {
  check(!parts.empty(), "merge: there are no parts of a table");
  TableCut whole = without_rows(parts[0]);
  struct Place {
    Id id;
    std::size_t part, index, row;
  };
  std::vector<Place> places;
  std::map<std::int64_t, std::vector<std::int64_t>> sessions;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const TableCut& part = parts[p];
    check(part.width == whole.width && part.optimizer == whole.optimizer &&
              part.row_floats == whole.row_floats && part.seed == whole.seed &&
              part.initial_range == whole.initial_range,
          "merge: part {} belongs to another table: width {}, optimizer {}, instead of {}, {}", p,
          part.width, part.optimizer, whole.width, whole.optimizer);
    whole.now = std::max(whole.now, part.now);
    add_sessions(sessions, part);
    std::size_t row = 0;
    for (std::size_t i = 0; i < part.ids.size(); ++i) {
      places.push_back({part.ids[i], p, i, row});
      row += part.admitted[i];
    }
  }
  std::sort(places.begin(), places.end(),
            [](const Place& a, const Place& b) { return a.id < b.id; });
  for (const Place& place : places) add_id(whole, parts[place.part], place.index, place.row);
  for (const auto& [number, record] : sessions)
    whole.sessions.insert(whole.sessions.end(), record.begin(), record.end());
  return whole;
}

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
