#pragma once

// Cuts of tables (engine/tables/table_cut.h) in a folder of checkpoints: one checkpoint holds all
// tables of a job and, as texts, whatever else belongs to the same moment, for instance the
// positions of samplers.
//
//   tables::TableCheckpoints checkpoints("tables");
//   checkpoints.save(step, {{"item", rows->cut()}}, {{"sampler", position}});
//   ...
//   rows->restore(checkpoints.load(checkpoints.steps().back(), "item"));
//
// Each table is stored as tensors, so `paceline checkpoint show` lists them, and its files are
// verified like those of every checkpoint (docs/checkpoints.md).
//
// Thread safety: none; load(), steps(), tables() and texts() do not change the object.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "paceline/engine/tables/table_cut.h"

namespace paceline {
class CheckpointDirectory;
}

namespace paceline::tables {

class TableCheckpoints {
 public:
  // A writer creates the folder, claims it for as long as this object exists, and removes the
  // unfinished work of earlier writers; the newest `keep` checkpoints remain after a save. A reader
  // (`read_only`) changes nothing, and may read while another process writes. Error(kInvalid) when
  // another writer has the folder; Error(kSystem) when it cannot be created.
  explicit TableCheckpoints(const std::string& folder, int keep = 3, bool read_only = false);
  TableCheckpoints(const TableCheckpoints&) = delete;
  TableCheckpoints& operator=(const TableCheckpoints&) = delete;

  // Saves a checkpoint, which replaces one of the same step. When this returns, it survives a power
  // cut; a process that is killed earlier leaves the older checkpoints as they were. Error(kSystem)
  // when the disk fails; Error(kInvalid) for a name that is not UTF-8, is empty or has a slash, and
  // for a reader.
  void save(std::int64_t step, const std::map<std::string, TableCut>& tables,
            const std::map<std::string, std::string>& texts = {});

  // The steps that have a checkpoint, in ascending order.
  std::vector<std::int64_t> steps() const;
  // Reads a table. Error(kInvalid), with the tables that exist, if the checkpoint has none of this
  // name, or if there is no checkpoint of this step; Error(kCorrupt) if the checkpoint is damaged.
  TableCut load(std::int64_t step, const std::string& table) const;
  // The names of a checkpoint's tables, and its texts. Errors as those of load().
  std::vector<std::string> tables(std::int64_t step) const;
  std::map<std::string, std::string> texts(std::int64_t step) const;

 private:
  const std::shared_ptr<CheckpointDirectory> directory_;
};

}  // namespace paceline::tables
