#pragma once

// Parameters of which a rank has only a part: reading a gradient that is divided among ranks is an
// error, and parameters that hosts divide become whole, unit by unit, while operations read them.

#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/collectives/memory/one_copy.h"

namespace paceline::optim {

// From now on parameter.grad() throws Error(kInvalid) while it is undefined and `divider` lives.
// LibTorch's own functions, such as torch::nn::utils::clip_grad_norm_ and the steps of
// torch::optim, would otherwise see a parameter without a gradient and silently do nothing.
// LibTorch keeps autograd's data of a tensor in an object with virtual functions; this function
// replaces that object by one that checks. A backward pass and zero_grad() use mutable_grad(),
// which works as before. Requires: the parameter is a leaf. Thread safety: none for one parameter.
void guard_divided_gradient(const at::Tensor& parameter, std::weak_ptr<const void> divider);
// Whether a divider that lives has this parameter's gradient. Functions that get only parameters
// use it to refuse instead of seeing no gradient. Any thread.
bool is_gradient_divided(const at::Tensor& parameter);

// Parameters of which each host keeps only its ranks' parts. Before an operation of LibTorch reads
// a parameter, its unit becomes whole in the memory that the host's ranks share: each rank gets its
// peers' parts, the host's ranks wait for each other, and the oldest whole units lose the parts of
// other hosts again. The unit that followed this one in the previous step is requested at the same
// time, and arrives while the model computes with this one. Forward and backward passes look the
// same to it: it sees operations (at::RecordFunction), not modules.
//
// So an operation that reads a parameter is collective, and all ranks must read units that are not
// whole in the same order, as they do if they run the same model. Otherwise the ranks get the error
// of calls that do not match, or time out. An operation cannot throw such an error: it goes on with
// zeros, and require_whole(), or the next collective, throws.
//
// Reading the memory of a unit that is not whole in another way, through data_ptr(), ends the
// process after a line with the parameter's name (one_copy.h). A result of whole() keeps all units
// whole for as long as it lives.
//
// Thread safety: one thread runs the model.
class DividedParameters : public std::enable_shared_from_this<DividedParameters> {
 public:
  // The place of a unit in the copy: parts of equal size, one for each rank of all hosts. `offset`
  // is the beginning of a page; `parameters` are the beginnings of their storages.
  struct Unit {
    std::size_t offset = 0;
    std::size_t part_bytes = 0;
    std::vector<const void*> parameters;
    std::string name;  // "parameter fc1.weight", the first of them
  };

  // `peers`: the ranks with this rank's local index on each host; `parts`: the part that each of
  // them keeps, by its rank. Requires: `copy` has the parts of this host.
  DividedParameters(std::shared_ptr<const OneCopy> copy, std::shared_ptr<ProcessGroup> host,
                    std::shared_ptr<ProcessGroup> peers, std::vector<int> parts,
                    std::vector<Unit> units);
  ~DividedParameters();
  DividedParameters(const DividedParameters&) = delete;
  DividedParameters& operator=(const DividedParameters&) = delete;

  // Makes units whole. Collective if one of them is not.
  void fetch(std::span<const std::size_t> units);
  // While a result lives, all units are whole, and this object lives. Collective, and so is the end
  // of the last result. Requires: a shared_ptr owns this object.
  std::shared_ptr<void> whole();
  // Drops the parts of other hosts, because a step is about to change them.
  void forget();
  // Throws the error that kept a unit from becoming whole, if any.
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
  std::vector<std::byte> leaving_;     // this rank's part of a unit
  std::vector<std::byte> arriving_;    // a unit's parts from the peers, in their order
  std::optional<Fetch> under_way_;     // into arriving_
  std::vector<std::size_t> whole_;     // whole units, in the order in which they became whole
  std::vector<std::size_t> order_;     // the order in which units have become whole since forget()
  std::vector<std::size_t> expected_;  // order_ of the previous step
  int num_holders_ = 0;                // results of whole() that are alive
  std::exception_ptr error_;
  double exposed_seconds_ = 0;
};

}  // namespace paceline::optim
