#pragma once

// The rows of a table as they were at one moment: for evaluation, for export, and for readers that
// need one version of a model while others train it.
//
//   const tables::TableSnapshot snapshot = rows->snapshot();
//   snapshot.pull(ids, values);
//
// Thread safety: const methods.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "paceline/engine/tables/row_options.h"
#include "paceline/engine/tables/table_cut.h"

namespace paceline::tables {

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
  std::vector<std::size_t> row_of_;  // the place in TableCut::rows of each id
  std::size_t num_rows_ = 0;
};

}  // namespace paceline::tables
