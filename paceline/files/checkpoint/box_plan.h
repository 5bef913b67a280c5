#pragma once

// The plan of a save: which rank writes which boxes. All ranks make the same plan of what each of
// them holds. Where several ranks hold the same elements, each of them writes a share.
//
// Thread safety: pure functions, but for AgreedPlan.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/core/dtype.h"
#include "paceline/files/checkpoint/box.h"
#include "paceline/files/checkpoint/manifest.h"

namespace paceline {

// A box of a tensor that a rank holds.
struct HeldBox {
  std::string name;
  Dtype dtype = Dtype::kFloat32;
  std::vector<std::int64_t> shape;  // of the whole tensor
  Box box;                          // no elements: the rank only knows of the tensor

  bool operator==(const HeldBox&) const = default;
};

struct BoxHolder {
  int rank = 0;
  std::size_t index = 0;  // in the rank's list
};

// A box that a fixed set of ranks all hold; they share the writing of it.
struct CommonBox {
  std::size_t tensor = 0;  // its number in BoxPlan::tensors
  Box box;
  std::vector<BoxHolder> holders;  // by rank; at least one
};

// What one rank writes, in the order of its file.
struct BoxToWrite {
  std::size_t tensor = 0;
  Box box;
  std::size_t index = 0;   // in the list of what the rank holds: the box lies within that one
  std::size_t common = 0;  // its number in BoxPlan::common: the box lies within that one, too
};

struct BoxPlan {
  std::vector<StoredTensor> tensors;             // by name; their boxes as they will be stored
  std::vector<CommonBox> common;                 // all elements of all tensors, each once
  std::vector<std::vector<BoxToWrite>> of_rank;  // [rank]
  std::vector<std::uint32_t> file_of_rank;       // the number of its file
  std::size_t num_files = 0;                     // of ranks that write something
};

std::uint64_t bytes_of(const BoxPlan& plan, const BoxToWrite& one);

// `held`: by rank. `writes`: the ranks that can write; the others do only what no other one holds.
// Error(kInvalid) naming the tensor when ranks disagree on it, or hold too little or more of it
// than there is.
BoxPlan plan_boxes(const std::vector<std::vector<HeldBox>>& held, const std::vector<bool>& writes);

// What a rank holds, as text for the other ranks. Local. decode_held(): Error(kCorrupt) for a text
// that was cut or makes no sense; it takes no memory that such a text only claims to fill.
std::string encode(const std::vector<HeldBox>& held);
std::vector<HeldBox> decode_held(const std::string& text);

// A box that this rank holds, and where.
struct HeldMemory {
  HeldBox held;
  BoxPlace place;
};

// What a manifest says beside tensors and files.
struct CheckpointWords {
  std::string run;  // empty: unknown
  std::map<std::string, std::string> metadata;
};

// The plan that the ranks of a group have made of what they hold: made again only when some rank
// holds something else than before.
//
// Thread safety: none; while no thread updates it, threads may read it.
class AgreedPlan {
 public:
  // Collective. True when the plan is another one than before. Errors of plan_boxes(), on every
  // rank.
  bool update(ProcessGroup& group, const std::vector<HeldMemory>& held,
              const std::vector<bool>& writes);

  // Requires: it was updated.
  const BoxPlan& operator*() const { return *plan_; }
  const BoxPlan* operator->() const { return &*plan_; }

  // The bytes of the file that this rank writes; 0 when it writes none.
  std::uint64_t file_bytes(int rank) const;
  // The manifest of a checkpoint that was written by this plan. `files`: by number.
  Manifest manifest(std::int64_t step, const CheckpointWords& words,
                    std::vector<ManifestFile> files) const;

 private:
  std::vector<HeldBox> held_;  // of the plan
  std::optional<BoxPlan> plan_;
};

}  // namespace paceline
