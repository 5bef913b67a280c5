#pragma once

// A cut: everything that a table holds at one moment, as plain arrays. It can be saved beside the
// state of a model, and restored into tables on any number of hosts (files/table_files). A snapshot
// reads rows from a cut.
//
// A cut includes the sessions. So a push that was applied in part at that moment continues at the
// right row when it is repeated after the restoration, and a push that was applied completely is
// not applied again.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "paceline/engine/tables/row_options.h"

namespace paceline::tables {

struct TableCut {
  static constexpr std::size_t kSessionNumbers = 5;

  // The rows' bytes depend on these values; a table with other values cannot take the rows.
  std::uint32_t width = 0;
  std::string optimizer;         // "RowAdagrad"
  std::uint32_t row_floats = 0;  // elements and state of the optimizer
  std::uint64_t seed = 0;
  float initial_range = 0;

  double lr = 0;
  std::uint64_t now = 0;  // the table's time: the largest clock that any worker had reached

  // An element for each id, in ascending order of ids.
  std::vector<Id> ids;
  std::vector<std::int32_t> sightings;  // pushes of the id, counted until it was admitted
  std::vector<std::int64_t> used;       // the time of the last pull or push
  std::vector<std::uint8_t> admitted;   // 1 if the id has a row
  std::vector<float> rows;              // [admitted ids, row_floats]

  // kSessionNumbers elements for each session: its number, and sequence, position, size and digest
  // of its last push.
  std::vector<std::int64_t> sessions;

  bool operator==(const TableCut&) const = default;
};

// The rows of a table as they were at one moment: for evaluation, for export, and for readers that
// need one version of a model while others train it.
//
//   const tables::TableSnapshot snapshot = rows->snapshot();
//   snapshot.pull(ids, values);
//
// Thread safety: const methods may be called from any thread.
class TableSnapshot {
 public:
  explicit TableSnapshot(TableCut cut);

  // The largest clock that any worker had reached.
  std::uint64_t version() const { return cut_.now; }
  std::uint32_t width() const { return cut_.width; }
  std::size_t num_rows() const { return num_rows_; }
  // Copies rows as Rows::pull() does, with the same error. A row that had expired, but had not been
  // removed yet, still has its values.
  void pull(std::span<const Id> ids, std::span<float> values) const;

  const TableCut& cut() const { return cut_; }

 private:
  TableCut cut_;
  std::vector<std::size_t> row_of_;  // the offset of each id's row in TableCut::rows
  std::size_t num_rows_ = 0;
};

}  // namespace paceline::tables
