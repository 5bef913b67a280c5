#pragma once

// How tensors are passed between the stages of a pipeline: StageLinks sends and receives them, and
// Loans lets ranks on the same host read them in place.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/planning/schedules/pipeline_schedule.h"
#include "paceline/training/tensor/collectives.h"

namespace paceline {

// Tensors that ranks on the same host lend each other instead of sending their bytes: the borrower
// gets a tensor over the lender's memory. Ranks that are processes lend tensors in the
// SymmetricArena (SymmetricTensors); threads of one process lend any tensor. Only memory that
// LibTorch allocated is lent, so a borrowed tensor is never lent again.
//
// Each loan uses a slot, a word in the lender's symmetric memory that holds the position of the
// tensor. The borrower clears the slot when its last use of the tensor has ended; the lender keeps
// the tensor until then.
//
// Thread safety: none, except that any thread may drop borrowed tensors, even after the end of this
// object.
class Loans {
 public:
  // The most loans that a rank may have open at once.
  static constexpr std::int64_t kMaxOpenLoans = 1024;

  // The lender's message to the borrower about a tensor.
  struct Loan {
    std::int64_t slot = 0;
    std::int64_t arena = 0;  // SymmetricArena::number(); 0 between threads
  };

  // Collective.
  explicit Loans(std::shared_ptr<ProcessGroup> group);
  // After a failure of the group, tensors that are still lent are never freed, because a slow rank
  // may still read them.
  ~Loans();
  Loans(const Loans&) = delete;
  Loans& operator=(const Loans&) = delete;

  // Returns nullopt if the tensor must be sent instead. Requires: `tensor` is contiguous.
  std::optional<Loan> lend(const at::Tensor& tensor, int peer);
  // The result must not be written to. Error(kInvalid) when this rank does not use the lender's
  // arena.
  at::Tensor borrow(const Loan& loan, int peer, at::IntArrayRef sizes, at::ScalarType type);
  // Every rank must call this after it has borrowed all tensors that were lent to it. Borrowed
  // tensors that this rank still uses become copies; then the call waits until this rank's own
  // tensors are returned. Afterwards no rank reads another rank's memory. Errors: those of
  // ProcessGroup::recv().
  void settle();

 private:
  void collect();
  void wait_for(int borrower);
  std::uint64_t* slot_of(int rank, std::int64_t slot) const;

  const std::shared_ptr<ProcessGroup> group_;
  const bool are_threads_;
  SymmetricBuffer slots_;  // kMaxOpenLoans words of every rank; empty if no tensor can be lent
  std::vector<std::int64_t> free_;           // free slots
  std::map<std::int64_t, at::Tensor> lent_;  // [slot]: the tensor that is lent
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> borrowed_;
  std::set<int> lenders_, borrowers_;  // of the loans since the last settle()
};

// The tensors that stages pass to each other: in the forward pass the outputs of a micro-batch, in
// the backward pass their gradients. First a list is sent that describes how each tensor arrives:
// as a loan, if both ranks are on the same host (Loans), or as a message that includes its shape
// and type. Between stages of the same rank tensors are not moved. Sends return without waiting;
// finish() waits.
//
// Tensors on a CUDA device are sent by the group's CUDA backend if it has one: neither rank then
// waits for its device. Such a backend delivers messages in the order of sending, so in these
// groups the lists of a rank are also received in that order, and tensors that arrive before they
// are needed are kept. In other groups the tensors travel through pinned host memory: a send waits
// until the device has computed them, a receive queues the copies to the device.
//
// Thread safety: none.
class StageLinks {
 public:
  using Tensors = std::vector<at::Tensor>;
  enum class Direction { kForward, kBackward };

  // Collective. Requires: `schedule` outlives this object. `device` has this rank's stages.
  StageLinks(std::shared_ptr<ProcessGroup> group, const PipelineSchedule& schedule,
             c10::Device device);

  // Sends from `stage` to the next stage (kForward) or the previous one (kBackward). Undefined
  // gradients arrive as undefined tensors. Error(kInvalid) if the number of outputs of a stage
  // differs from that of its first micro-batch.
  void send(int stage, int micro_batch, Direction direction, const Tensors& tensors);
  // Returns the tensors that the previous stage (kForward) or the next one (kBackward) has sent to
  // `stage`. They must not be written to.
  Tensors receive(int stage, int micro_batch, Direction direction);
  // Every rank must call this when it has received all its tensors: waits until no other rank reads
  // this rank's tensors.
  void finish();

 private:
  using Key = std::tuple<int, int, Direction>;  // sending stage, micro-batch, direction
  // Tensors that have arrived or are still in flight.
  struct Arrival {
    Tensors tensors;
    std::vector<WorkPtr> works;  // messages of the CUDA backend
  };

  int rank_of(int stage) const { return schedule_.rank_of_stage[static_cast<std::size_t>(stage)]; }
  std::uint32_t tag(const Key& key) const;
  bool is_sent_by_device(const at::Tensor& tensor) const;
  Tensors on_host(const Tensors& tensors) const;
  std::pair<Key, Arrival> next_arrival(int peer, std::uint32_t tag);
  Arrival arrival_of(int peer, const Key& key);
  void drop_finished_sends();

  const std::shared_ptr<ProcessGroup> group_;
  const PipelineSchedule& schedule_;
  const c10::Device device_;
  Loans loans_;
  std::map<int, std::size_t> counts_;  // [sending stage]: the number of tensors
  std::map<Key, Tensors> own_;
  const bool has_device_messages_;               // the group has a CUDA backend
  std::map<std::pair<int, Key>, Arrival> kept_;  // [sending rank, key]
  std::vector<WorkPtr> sends_;
};

}  // namespace paceline
