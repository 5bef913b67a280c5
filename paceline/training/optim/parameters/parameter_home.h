#pragma once

// Where the parameters of an optimizer are stored: in memory of their own (ParameterHome itself),
// in symmetric memory of the ranks that divide a step, in one copy per host, in a part of one copy
// on each host, or divided among CUDA devices (device_parameters.h). The storage decides what a
// step has to communicate. ShardOptions tells how an optimizer's step, its gradients and the
// parameters are divided among ranks; fully_shard() (training/parallel/fully_shard.h) makes it from
// a stage.
//
// Thread safety: none.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/optim/parameters/parameter_rows.h"

namespace paceline::optim {

// How OptimizerCore::shard() divides a step. A plain value.
struct ShardOptions {
  // Keeps one copy of the parameters for all ranks of a host. Error(kUnsupported) if these ranks
  // share no memory, or if hosts have different numbers of ranks. Parameters on CUDA devices are
  // divided among all ranks instead (device_parameters.h).
  bool node_shared = false;
  // Names of parameters(), for the message about a write outside of a step; empty: their numbers.
  std::vector<std::string> names = {};
  // Above 0: gradients are divided too, in units of about this many bytes of parameters.
  std::size_t unit_bytes = 0;
  // Units chosen by the caller, such as a block's parameters; unit_bytes applies to all other
  // parameters.
  std::vector<std::vector<at::Tensor>> units = {};
  // With one copy and units, on several hosts: each host keeps only the parts of its ranks, and a
  // unit is whole on a host only while operations read it (divided_parameters.h).
  bool shard_across_hosts = false;
};

class ParameterHome {
 public:
  using Run = ParameterRows::Run;

  // Requires: `rows` outlives this object.
  explicit ParameterHome(const ParameterRows& rows) : ParameterHome(rows, nullptr) {}
  virtual ~ParameterHome() = default;
  ParameterHome(const ParameterHome&) = delete;
  ParameterHome& operator=(const ParameterHome&) = delete;

  // The ranks among which the rows are divided; null: they are not divided.
  ProcessGroup* group() const { return group_.get(); }
  // See OptimizerCore's functions of the same names.
  virtual bool shares_parameters() const { return false; }
  virtual bool divides_parameters() const { return false; }

  // The address at which a parameter may be written: that of its first element in memory.
  virtual std::byte* to_write(std::size_t parameter) const;
  // The elements of a parameter, as a row in the memory to which steps and loads write. Requires:
  // this rank updates or loads them.
  virtual at::Tensor elements(std::size_t parameter, Run run) const;
  // Throws Error(kInvalid) and aborts the group if the program has given a parameter other memory,
  // for instance by torch::load(). The ranks would then no longer share it.
  void require_in_place() const;
  // Called before and after a step's updates of this rank's part; collective.
  virtual void before_update() {}
  virtual void after_update() {}

  // Checksums of a parameter's words: over the given elements, and over the parts that other ranks
  // update and that this rank has between steps.
  std::uint32_t sum_of_elements(std::size_t parameter, Run elements) const;
  virtual std::uint32_t sum_of_other_parts(std::size_t) const { return 0; }

  // See OptimizerCore::elements_to_save() and elements_to_load().
  virtual std::vector<Run> to_save(std::size_t parameter) const { return all_of(parameter); }
  virtual std::vector<Run> to_load(std::size_t parameter) const { return all_of(parameter); }

  // See Optimizer::writable_parameters(), whole_parameters() and
  // OptimizerCore::require_parameters().
  virtual std::shared_ptr<void> writable() const { return nullptr; }
  virtual std::shared_ptr<void> whole() const { return nullptr; }
  virtual void require() const {}
  // Drops the parts of other hosts or ranks that this host or rank holds, because all parts are
  // about to change.
  virtual void forget_others() {}
  // Seconds that operations have waited for other hosts' parts since the last call.
  virtual double take_fetch_seconds() { return 0; }

 protected:
  ParameterHome(const ParameterRows& rows, std::shared_ptr<ProcessGroup> group)
      : rows_(rows), group_(std::move(group)) {}
  std::vector<Run> all_of(std::size_t parameter) const;
  // Records where the parameters are now, for require_in_place().
  void note_places(const std::vector<std::string>& names);

  const ParameterRows& rows_;
  const std::shared_ptr<ProcessGroup> group_;  // shared with the user

 private:
  struct Place {
    const void* storage = nullptr;
    std::string name;
  };
  std::vector<Place> places_;  // [parameter]; empty: a parameter may move
};

// "parameter fc1.weight"; without names "parameter 3".
std::string parameter_name(const std::vector<std::string>& names, std::size_t parameter);
// A rank's part of a row whose parts are all in `flat`.
at::Tensor part_of(const at::Tensor& flat, const ParameterRows::Row& row, int part);

// Moves the parameters of rows that are divided among the group's ranks into memory that the ranks
// share or divide, and returns their new home. Collective; errors as in ShardOptions.
std::unique_ptr<ParameterHome> make_shared_home(const ParameterRows& rows,
                                                std::shared_ptr<ProcessGroup> group,
                                                const ShardOptions& options);

}  // namespace paceline::optim
