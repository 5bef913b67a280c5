#pragma once

// Saves cuts of tables (engine/tables/table_cut.h) in a folder of checkpoints, and loads them. One
// checkpoint holds the cuts of all tables of a job and, as texts, other state of the same moment,
// for instance the positions of samplers.
//
//   tables::TableCheckpoints checkpoints("tables");
//   checkpoints.save(step, {{"item", rows->cut()}}, {{"sampler", position}});
//   ...
//   rows->restore(checkpoints.load(checkpoints.steps().back(), "item"));
//
// A checkpoint stores each table as tensors, which `paceline checkpoint show` lists. Its files are
// verified like those of every other checkpoint (docs/checkpoints.md).
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
  // Opens a folder for writing or, if `read_only`, for reading. A writer creates the folder, claims
  // it for as long as this object exists, and removes checkpoints that earlier writers left
  // unfinished; each save keeps only the newest `keep` checkpoints. A reader changes nothing, and
  // may read while another process writes. Error(kInvalid) if another writer has claimed the
  // folder; Error(kSystem) if the folder cannot be created.
  explicit TableCheckpoints(const std::string& folder, int keep = 3, bool read_only = false);
  ~TableCheckpoints();
  TableCheckpoints(const TableCheckpoints&) = delete;
  TableCheckpoints& operator=(const TableCheckpoints&) = delete;

  // Saves a checkpoint of `step`, and replaces an earlier one of that step. Once this function has
  // returned, the checkpoint survives a power cut; if the process is killed earlier, the older
  // checkpoints remain as they were. Error(kSystem) if the disk fails; Error(kInvalid) if the name
  // of a table is not UTF-8, is empty or contains a slash, or if the folder is open for reading.
  void save(std::int64_t step, const std::map<std::string, TableCut>& tables,
            const std::map<std::string, std::string>& texts = {});

  // The steps that have a checkpoint, in ascending order.
  std::vector<std::int64_t> steps() const;
  // Reads a table. Error(kInvalid) if there is no checkpoint of this step, or if the checkpoint has
  // no table of this name (the message lists its tables); Error(kCorrupt) if the checkpoint is
  // damaged.
  TableCut load(std::int64_t step, const std::string& table) const;
  // The names of a checkpoint's tables, and its texts. Errors: those of load().
  std::vector<std::string> tables(std::int64_t step) const;
  std::map<std::string, std::string> texts(std::int64_t step) const;

 private:
  const std::unique_ptr<CheckpointDirectory> directory_;
};

}  // namespace paceline::tables
