#pragma once

// The files of TableCheckpoints (table_checkpoints.h): how cuts of tables are written to a
// directory of checkpoints, and read from it.
//
// Thread safety: that of CheckpointDirectory.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "paceline/engine/tables/table_cut.h"
#include "paceline/files/checkpoint/checkpoint_directory.h"

namespace paceline::tables {

// These functions implement save(), load(), tables() and texts() of TableCheckpoints; behavior and
// errors are described there.
void save_tables(CheckpointDirectory& directory, std::int64_t step,
                 const std::map<std::string, TableCut>& tables,
                 const std::map<std::string, std::string>& texts = {});
TableCut load_table(const CheckpointDirectory& directory, std::int64_t step,
                    const std::string& table);
std::vector<std::string> tables_in(const CheckpointDirectory& directory, std::int64_t step);
std::map<std::string, std::string> texts_in(const CheckpointDirectory& directory,
                                            std::int64_t step);

}  // namespace paceline::tables
