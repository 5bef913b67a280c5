#pragma once

// The ranks of rank 0's host copy a snapshot together, each a share of it, into memory of rank 0
// that they all map. Replicas have the same bits, so n ranks wait for an n-th of the copy; and what
// is divided among them, such as a sharded optimizer's state, need not be gathered.
//
// Where they cannot, rank 0 copies alone, which is reported once: where they share no memory
// (sockets, no memory left), and when what should be replicas differs, so that no checkpoint is a
// mixture of several ranks' states. That is looked for at every save, in a sample of each tensor.
//
// Cost: memory for one snapshot, kept for the next one, and a small all-gather and a barrier a
// save. A rank that dies while it copies its share is an error of the barrier on all others, and
// rank 0 has nothing to write.
//
// Thread safety: none.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "paceline/checkpoint/snapshot.h"
#include "paceline/collectives/group/process_group.h"

namespace paceline {

// A tensor of a snapshot, and what this rank holds of it.
struct HeldTensor {
  enum class By : std::uint8_t {
    kAll,     // every rank holds all of it, with the same bits
    kRoot,    // rank 0's is the one to keep; the others need give no bytes
    kOwners,  // each rank holds a run of its elements, all of them the whole
  };
  NamedTensor tensor;  // bytes: what this rank holds, in the order of its memory
  By by = By::kAll;
  std::size_t first = 0;                // kOwners: of the whole's bytes the first one held
  std::vector<std::int64_t> strides{};  // of the whole in memory (row_major.h); empty: row-major
};

class SharedStaging {
 public:
  // Collective over `group`.
  explicit SharedStaging(std::shared_ptr<ProcessGroup> group);

  // Whether all these ranks of the world are on rank 0's host.
  bool includes(std::span<const int> world_ranks) const;

  // Collective over the group. When it returns true, which it does on all ranks or on none, rank 0
  // has the snapshot; otherwise it must copy by itself. Requires: rank 0 calls when no rank needs
  // the snapshot staged before any more; tensors of the same names, types and shapes on all ranks.
  bool stage(std::span<const HeldTensor> tensors);

  // Rank 0's, after stage(): row-major, in memory that stays as it is until the next stage().
  std::vector<NamedTensor> staged(std::span<const HeldTensor> tensors) const;

 private:
  bool is_sharer() const { return sharers_ != nullptr && sharers_->is_member(); }
  bool agree(std::span<const HeldTensor> tensors, std::size_t bytes);
  bool reserve(std::size_t bytes);
  void copy_share(std::span<const HeldTensor> tensors, std::size_t bytes) const;
  void say_once(const std::string& why);

  const std::shared_ptr<ProcessGroup> group_;  // owners: the user and this
  const std::vector<int> ranks_;               // of rank 0's host
  std::shared_ptr<ProcessGroup> sharers_;      // of these; null where there is but one
  bool shares_memory_ = false;
  bool said_ = false;
  SymmetricBuffer memory_;  // rank 0's block is what all write to
};

}  // namespace paceline
