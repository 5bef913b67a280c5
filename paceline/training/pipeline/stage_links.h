#pragma once

// How tensors get from one stage of a pipeline to the next: StageLinks passes them on, and Loans
// lets ranks of one host read them in place.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/planning/schedules/plan.h"

namespace paceline {

// Tensors that ranks of one host lend each other instead of sending their bytes: the borrower gets
// a tensor over the lender's memory. Ranks that are processes lend tensors in the SymmetricArena
// (SymmetricTensors), threads of one process lend any tensor. Only memory that LibTorch allocated
// is lent, so borrowed tensors never are.
//
// Each loan takes a slot, a word in the lender's symmetric memory that says where the tensor is.
// The borrower clears it when its last use of the tensor has ended; the lender keeps the tensor
// until then.
//
// Thread safety: none; but borrowed tensors may be dropped in any thread, also after this object.
class Loans {
 public:
  // The most loans that a rank may have open at once.
  static constexpr std::int64_t kMost = 1024;

  // The lender's message to the borrower about a tensor.
  struct Loan {
    std::int64_t slot = 0;
    std::int64_t arena = 0;  // SymmetricArena::number(); 0 between threads
  };

  // Collective.
  explicit Loans(std::shared_ptr<ProcessGroup> group);
  // After a failure of the group, tensors that are still lent are kept forever: a late rank may
  // still read them.
  ~Loans();
  Loans(const Loans&) = delete;
  Loans& operator=(const Loans&) = delete;

  // Returns nothing if the tensor has to be sent. Requires: `tensor` is contiguous.
  std::optional<Loan> lend(const at::Tensor& tensor, int peer);
  // The result must not be written to. Error(kInvalid) when this rank does not use the lender's
  // arena.
  at::Tensor borrow(const Loan& loan, int peer, at::IntArrayRef sizes, at::ScalarType type);
  // All ranks call it once each has borrowed the tensors that were lent to it. Borrowed tensors
  // that this rank still uses become its own copies; then it waits until its own tensors are
  // returned. Afterwards no rank reads another rank's memory. Errors as those of
  // ProcessGroup::recv().
  void settle();

 private:
  void collect();
  void wait_for(int borrower);
  std::uint64_t* slot_of(int rank, std::int64_t slot) const;

  const std::shared_ptr<ProcessGroup> group_;
  const bool are_threads_;
  SymmetricBuffer slots_;                    // kMost words of every rank; empty if nothing is lent
  std::vector<std::int64_t> free_;           // slots
  std::map<std::int64_t, at::Tensor> lent_;  // by slot
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> borrowed_;
  std::set<int> lenders_, borrowers_;  // since settle()
};

// The tensors that stages pass to each other: forward the outputs of a micro-batch, backward their
// gradients. A list is sent first that says how each tensor arrives: lent, if both ranks are on one
// host (Loans), or as a message that brings its shape and type. Between stages of one rank tensors
// stay where they are. Sends do not wait; finish() does. Thread safety: none.
class StageLinks {
 public:
  using Tensors = std::vector<at::Tensor>;
  enum class Direction { kForward, kBackward };

  // Collective. Requires: the plan outlives it.
  StageLinks(std::shared_ptr<ProcessGroup> group, const pipeline::Plan& plan);

  // Sends from `stage` to the next stage (kForward) or the previous one (kBackward). Undefined
  // gradients arrive as such. Error(kInvalid) for another number of tensors than before.
  void send(int stage, int micro_batch, Direction direction, const Tensors& tensors);
  // Returns the tensors that the previous stage (kForward) or the next one (kBackward) has sent to
  // `stage`. They must not be written to.
  Tensors receive(int stage, int micro_batch, Direction direction);
  // All ranks call it when every tensor has been received: waits until this rank's tensors are its
  // own again.
  void finish();

 private:
  int rank_of(int stage) const { return plan_.rank_of_stage[static_cast<std::size_t>(stage)]; }
  std::uint32_t tag(int from, int micro_batch, Direction direction) const;
  void drop_finished_sends();

  const std::shared_ptr<ProcessGroup> group_;
  const pipeline::Plan& plan_;
  Loans loans_;
  std::map<int, std::size_t> counts_;  // the number of tensors, by the stage that sends them
  std::map<std::tuple<int, int, Direction>, Tensors> own_;
  std::vector<WorkPtr> sends_;
};

}  // namespace paceline
