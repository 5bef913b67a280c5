#pragma once

// Cuts of tables (engine/tables/table_cut.h) in a directory of checkpoints: one checkpoint holds
// all tables of a job and, as texts, whatever else belongs to the same moment, for instance the
// positions of samplers. Each table is stored as tensors, so `paceline inspect` shows them, and
// files are checked as those of every checkpoint.
//
//   CheckpointDirectory directory("tables");
//   save_tables(directory, step, {{"item", rows->cut()}}, {{"sampler", position}});
//   rows->restore(load_table(directory, step, "item"));
//
// Thread safety: as CheckpointDirectory.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "paceline/engine/tables/table_cut.h"
#include "paceline/files/checkpoint/checkpoint_directory.h"

namespace paceline::tables {

struct NamedCut {
  std::string table;
  TableCut cut;
};

// Saves a checkpoint, which replaces one of the same step. When this returns, it survives a power
// cut; a process that is killed earlier leaves the older checkpoints as they were. Errors of
// CheckpointDirectory::save_files(); Error(kInvalid) for two tables of one name, or a name that is
// not UTF-8 or has a slash.
void save_tables(CheckpointDirectory& directory, std::int64_t step,
                 const std::vector<NamedCut>& tables,
                 const std::map<std::string, std::string>& texts = {});

// Reads a table. Error(kInvalid), with the tables that exist, if the checkpoint has none of this
// name, or if there is no checkpoint of this step; Error(kCorrupt) if the checkpoint is damaged.
TableCut load_table(const CheckpointDirectory& directory, std::int64_t step,
                    const std::string& table);
// The names of the tables, and the texts.
std::vector<std::string> tables_in(const CheckpointDirectory& directory, std::int64_t step);
std::map<std::string, std::string> texts_in(const CheckpointDirectory& directory,
                                            std::int64_t step);

}  // namespace paceline::tables
