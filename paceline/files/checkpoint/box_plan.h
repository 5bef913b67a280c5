#pragma once

// The plan of a save: which rank writes which boxes. Every rank makes the same plan from the lists
// of the boxes that the ranks hold. Ranks that hold the same elements each write a part of them.
//
// Thread safety: pure functions; AgreedPlan has its own rule.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/core/dtype_traits.h"
#include "paceline/files/checkpoint/box.h"
#include "paceline/files/checkpoint/manifest.h"

namespace paceline {

// A box of a tensor that a rank holds.
struct HeldBox {
  std::string name;
  Dtype dtype = Dtype::kFloat32;
  std::vector<std::int64_t> shape;  // of the whole tensor
  Box box;                          // without elements if the rank holds none of the tensor

  bool operator==(const HeldBox&) const = default;
};

struct BoxHolder {
  int rank = 0;
  std::size_t index = 0;  // in the list of the boxes that the rank holds
};

// A box, and the ranks that hold the box and write it together.
struct CommonBox {
  std::size_t tensor = 0;  // index in BoxPlan::tensors
  Box box;
  std::vector<BoxHolder> holders;  // in the order of ranks; at least one
};

// A box that a rank writes into its file.
struct BoxToWrite {
  std::size_t tensor = 0;
  Box box;
  std::size_t index = 0;   // the held box that contains it, in the rank's list
  std::size_t common = 0;  // the common box that contains it, in BoxPlan::common
};

struct BoxPlan {
  std::vector<StoredTensor> tensors;             // sorted by name; with the boxes in the files
  std::vector<CommonBox> common;                 // each element of each tensor is in exactly one
  std::vector<std::vector<BoxToWrite>> of_rank;  // [rank], in the order of the rank's file
  std::vector<std::uint32_t> file_of_rank;       // [rank]: the number of the rank's file
  std::size_t num_files = 0;                     // one for each rank that writes something
};

std::uint64_t bytes_of(const BoxPlan& plan, const BoxToWrite& one);

// `held[r]`: the boxes of rank r. `writes[r]`: whether rank r can write. A box is assigned to those
// of its holders that can write, or to its first holder if none can. Error(kInvalid) names a tensor
// on whose type or shape ranks disagree, or whose boxes leave out elements or reach beyond it.
BoxPlan plan_boxes(const std::vector<std::vector<HeldBox>>& held, const std::vector<bool>& writes);

// Encodes the list of boxes that a rank holds, for the other ranks. Not collective. decode_held()
// throws Error(kCorrupt) for a text that is truncated or invalid, and allocates no memory for
// elements that the text announces but does not contain.
std::string encode(const std::vector<HeldBox>& held);
std::vector<HeldBox> decode_held(const std::string& text);

// A box that this rank holds, and its place in memory.
struct HeldMemory {
  HeldBox held;
  StridedPointer place;
  bool must_be_finite = false;  // a save reports infinities and NaNs (Manifest::kNotFinite)
};

// The part of a manifest that the caller of a save provides.
struct CheckpointMetadata {
  std::string run;  // empty: unknown
  std::map<std::string, std::string> metadata;
};

// The plan that the ranks of a group have agreed on. The ranks make a new plan only when the boxes
// of some rank have changed.
//
// Thread safety: none; several threads may read it while none updates it.
class AgreedPlan {
 public:
  // Collective. Returns true when the plan has been made again. Errors are those of plan_boxes(),
  // on every rank.
  bool update(ProcessGroup& group, const std::vector<HeldMemory>& held,
              const std::vector<bool>& writes);

  // Everything below requires an earlier call of update() that has succeeded.
  const BoxPlan& operator*() const { return *plan_; }
  const BoxPlan* operator->() const { return &*plan_; }

  // The size of the boxes in the file that a rank writes; 0 when it writes none.
  std::uint64_t file_bytes(int rank) const;
  // The manifest of a checkpoint that was written by this plan. `files[i]`: the file of number i.
  Manifest manifest(std::int64_t step, const CheckpointMetadata& metadata,
                    std::vector<ManifestFile> files) const;

 private:
  std::vector<HeldBox> held_;  // the boxes that this rank held when the plan was made
  std::optional<BoxPlan> plan_;
};

}  // namespace paceline
