#pragma once

// The files of TableCheckpoints (table_checkpoints.h): how cuts of tables are written to a
// directory of checkpoints, and read from it.
//
// Thread safety: as CheckpointDirectory.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "paceline/engine/tables/table_cut.h"
#include "paceline/files/checkpoint/checkpoint_directory.h"

namespace paceline::tables {

// Saves a checkpoint, which replaces one of the same step. When this returns, it survives a power
// cut; a process that is killed earlier leaves the older checkpoints as they were. Errors of
// CheckpointDirectory::save_files(); Error(kInvalid) for a name that is not UTF-8, is empty or has
// a slash.
void save_tables(CheckpointDirectory& directory, std::int64_t step,
                 const std::map<std::string, TableCut>& tables,
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
