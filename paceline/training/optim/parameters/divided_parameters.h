#pragma once

// Parameters that a rank holds only in part. If gradients are divided among ranks, reading a
// gradient is an error. If hosts divide the parameters, each unit (a group of parameters) is made
// whole while operations read it.

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/collective.h"
#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/collectives/memory/one_copy.h"
#include "paceline/training/optim/parameters/operation_watch.h"

namespace paceline::optim {

// Drops the divided gradient of the optimizer's parameter number `parameter`.
using DropGradient = std::function<void(std::size_t parameter)>;

// While `divider` is alive, LibTorch's functions on this parameter treat its gradient as divided:
//
// - parameter.grad() throws Error(kInvalid) while the gradient is undefined. LibTorch's own
//   functions, such as torch::nn::utils::clip_grad_norm_ and the steps of torch::optim, would
//   otherwise see a parameter without a gradient and silently do nothing.
// - parameter.mutable_grad() outside of a backward pass calls `*divider` with `number`. LibTorch's
//   zero_grad() of modules, and programs that set a gradient, call mutable_grad(); otherwise the
//   next backward pass would add to a gradient that the program has dropped.
//
// LibTorch keeps a tensor's autograd data in an object with virtual functions; this function
// replaces that object with one that behaves as described above. Paceline's own code uses
// own_gradient(). Requires: the parameter is a leaf. Thread safety: none for calls with the same
// parameter.
void guard_divided_gradient(const at::Tensor& parameter, std::size_t number,
                            std::weak_ptr<const DropGradient> divider);
// Whether this parameter's gradient is divided by a divider that is still alive. Functions that get
// only parameters call this, so that they can throw instead of finding no gradient. Any thread may
// call it.
bool is_gradient_divided(const at::Tensor& parameter);

// Parameters of which each host keeps only its ranks' parts. Before an operation of LibTorch reads
// a parameter, its unit is made whole in the memory that the host's ranks share: each rank gets its
// peers' parts, the host's ranks wait for each other, and the units that have been whole for the
// longest time drop the parts of other hosts again. The unit that followed this one in the previous
// step is requested at the same time, and arrives while the model computes with this one
// (operation_watch.h).
//
// So an operation that reads a parameter is collective: all ranks must read units that are not
// whole in the same order, which is the case if they run the same model. Otherwise the ranks get
// the error for calls that do not match, or time out. An operation cannot throw such an error: it
// continues with zeros for missing parts, and require_whole(), or the next collective, throws.
//
// Any other read of a unit that is not whole, through data_ptr(), prints the parameter's name and
// ends the process (one_copy.h). A result of whole() keeps all units whole until it is destroyed.
//
// Thread safety: one thread runs the model.
class DividedParameters : public WatchedUnits,
                          public std::enable_shared_from_this<DividedParameters> {
 public:
  // The position of a unit in the copy: parts of equal size, one for each rank of all hosts.
  // `offset` is the beginning of a page.
  struct Unit {
    std::size_t offset = 0;
    std::size_t part_bytes = 0;
    std::vector<c10::Storage> storages;  // of the parameters
    std::string name;                    // name of the first parameter: "parameter fc1.weight"
  };

  // `peers`: the ranks with the same local rank as this one, one per host; `parts`: the number of
  // the part that each peer keeps, by its rank. Requires: `copy` has the parts of this host.
  DividedParameters(std::shared_ptr<const OneCopy> copy, std::shared_ptr<ProcessGroup> host,
                    std::shared_ptr<ProcessGroup> peers, std::vector<int> parts,
                    std::vector<Unit> units);
  ~DividedParameters() override;
  DividedParameters(const DividedParameters&) = delete;
  DividedParameters& operator=(const DividedParameters&) = delete;

  // Makes the units whole. Collective if one of them is not whole.
  void before_read(std::span<const std::size_t> units) override;
  // While a result lives, all units are whole, and this object lives. The call is collective, and
  // so is the destruction of the last result. Requires: a shared_ptr owns this object.
  std::shared_ptr<void> whole();
  // Drops the parts of other hosts, because a step is about to change them.
  void forget();
  // Throws the error, if any, that kept a unit from becoming whole.
  void require_whole() const;
  // Seconds that operations have waited for units since the last call.
  double take_exposed_seconds() { return std::exchange(exposed_seconds_, 0.0); }

 private:
  struct Fetch {
    std::size_t unit = 0;
    WorkPtr work;
  };

  std::byte* part(std::size_t unit, int number) const;
  std::size_t bytes_of(std::size_t unit) const;
  bool is_whole(std::size_t unit) const;
  void start(std::size_t unit);
  void require_same(std::size_t unit, std::size_t other, const char* who) const;
  void bring(std::size_t unit);
  void drop(std::size_t unit);
  void drop_oldest(std::span<const std::size_t> needed);
  void start_next();
  void let_go();

  const std::shared_ptr<const OneCopy> copy_;
  const std::shared_ptr<ProcessGroup> host_;
  const std::shared_ptr<ProcessGroup> peers_;
  const std::vector<int> parts_;
  const std::vector<Unit> units_;
  std::vector<std::byte> leaving_;     // this rank's part of a unit, to be sent
  std::vector<std::byte> arriving_;    // a unit's parts from the peers, in the order of the peers
  std::optional<Fetch> under_way_;     // the fetch that writes to arriving_
  std::vector<std::size_t> whole_;     // whole units, in the order in which they became whole
  std::vector<std::size_t> order_;     // the order in which units became whole since forget()
  std::vector<std::size_t> expected_;  // order_ of the previous step
  int num_holders_ = 0;                // the number of living results of whole()
  std::exception_ptr error_;
  double exposed_seconds_ = 0;
};

}  // namespace paceline::optim
