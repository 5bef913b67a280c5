#pragma once

// Checkpoints converted and compared: export to one safetensors file, which Python and every other
// framework read; import of such a file; one file of boxes in the place of many; and the
// differences of two checkpoints. Tensors are read and written one after the other, so that memory
// for the largest one suffices.
//
// Thread safety: pure functions but for the files.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "paceline/files/checkpoint/checkpoint_directory.h"

namespace paceline {

struct ExportOptions {
  bool weights_only = false;  // only tensors named "model.NAME", as NAME
};

// Replaces `file`, in one moment. Returns its bytes. Error(kInvalid) when there is no such step, or
// nothing to write; kCorrupt when the checkpoint is damaged; kSystem when the file cannot be
// written.
std::uint64_t export_safetensors(const CheckpointDirectory& from, std::int64_t step,
                                 const std::string& file, const ExportOptions& options = {});

// The checkpoint that export_safetensors() wrote, with its step, run and metadata; of another
// program's file, which says nothing of them, step 0. Returns the step. Error(kCorrupt) for a file
// that is missing or not valid, kInvalid when the step is in the directory. Requires: a writer.
std::int64_t import_safetensors(const std::string& file, CheckpointDirectory& into);

// The same checkpoint in one file of whole tensors. Error(kInvalid) when the step is in the
// directory. Requires: a writer, of another directory.
void merge_checkpoint(const CheckpointDirectory& from, std::int64_t step,
                      CheckpointDirectory& into);

struct TensorDifference {
  std::string name;
  std::string what;  // "float32 [3] here, float32 [4] there", "17 of 300 elements"
};

// The tensors and words in which the second differs from the first. Files, boxes, step, run and
// number of ranks may differ. Error(kCorrupt) for a damaged one.
std::vector<TensorDifference> diff_checkpoints(const CheckpointDirectory& first,
                                               std::int64_t first_step,
                                               const CheckpointDirectory& second,
                                               std::int64_t second_step);

}  // namespace paceline
