#pragma once

// Converts and compares checkpoints: exports one as a safetensors file, which other frameworks can
// read; imports such a file; merges many files of boxes into one; and lists the differences between
// two checkpoints. Tensors are read one at a time, so the memory for the largest one suffices, or
// for two copies of it in a comparison.
//
// Thread safety: the functions have no state; while one of them writes a file or directory, no
// other thread may use that file or directory.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "paceline/files/checkpoint/checkpoint_directory.h"

namespace paceline {

struct ExportOptions {
  bool weights_only = false;  // only tensors named "model.NAME", as NAME
};

// Writes a checkpoint to `file`, which is replaced by one rename. Returns the size of the file.
// Error(kInvalid) when there is no such step, or no tensor for `weights_only`; kCorrupt when the
// checkpoint is damaged; kSystem when the file cannot be written.
std::uint64_t export_safetensors(const CheckpointDirectory& from, std::int64_t step,
                                 const std::string& file, const ExportOptions& options = {});

// Imports the checkpoint that export_safetensors() wrote, with its step, run and metadata. A file
// without a step, such as that of another program, becomes step 0. Returns the step.
// Error(kCorrupt) for a file that is missing or not valid, kInvalid when the directory already has
// the step. Requires: `into` is a writer.
std::int64_t import_safetensors(const std::string& file, CheckpointDirectory& into);

// Copies the checkpoint of a step from one directory to another, as one file of whole tensors.
// Error(kInvalid) when `into` already has the step. Requires: `into` is a writer of another
// directory.
void merge_checkpoint(const CheckpointDirectory& from, std::int64_t step,
                      CheckpointDirectory& into);

struct TensorDifference {
  std::string name;
  std::string what;  // "float32 [3] in the first, float32 [4] in the second", "17 of 300 elements"
};

// The tensors and the metadata in which the second checkpoint differs from the first. Files, boxes,
// step, run and number of ranks are not compared. Error(kCorrupt) for a damaged checkpoint.
std::vector<TensorDifference> diff_checkpoints(const CheckpointDirectory& first,
                                               std::int64_t first_step,
                                               const CheckpointDirectory& second,
                                               std::int64_t second_step);

}  // namespace paceline
