#pragma once

// The norms of whole parameters that LAMB and LARS need, even if a rank has only parts of the
// parameters. A norm adds up the blocks of the parameter's row in order, so its bits are the same
// for any number of threads, and for any number of ranks that divide the row.
//
// Thread safety: several threads may call set() at the same time, for different pieces; none for
// the other functions.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/optim/parameters/parameter_rows.h"
#include "paceline/training/optim/rules/update_slice.h"

namespace paceline::optim {

class ParameterNorms {
 public:
  // A range of a parameter's elements within one block of its row; `slot` is the index at which its
  // partial sums are stored.
  struct Piece {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::size_t slot = 0;
  };

  // Requires: `rows` outlives this object.
  explicit ParameterNorms(const ParameterRows& rows) : rows_(rows) {}
  // Call it after rows were made. Collective over `group`; null: this rank alone.
  void lay_out(ProcessGroup* group);
  // `parameters`: the numbers of the parameters that are divided among the ranks of `layers`, in
  // ascending order.
  void divide(std::vector<std::size_t> parameters, std::shared_ptr<ProcessGroup> layers);

  // The pieces of a parameter that belong to this rank.
  std::span<const Piece> own_pieces(std::size_t parameter) const;
  void set(const Piece& piece, const NormPair& squares);
  // Collective: gets the sums of the other ranks. A parameter that has no gradient on this rank has
  // none on the other ranks either, and its norms are not read.
  void exchange();
  NormPair of(std::size_t parameter) const;

 private:
  NormPair squares_of(std::size_t parameter) const;

  const ParameterRows& rows_;
  ProcessGroup* group_ = nullptr;
  std::vector<std::vector<Piece>> pieces_;  // [parameter], in order
  at::Tensor sums_;  // [slot, 2]; the slots of rank 0 come first, then those of rank 1, ...
  std::vector<std::size_t> divided_;  // parameters, in order
  std::vector<double> divided_sums_;  // two for each parameter of divided_, over all its parts
  std::shared_ptr<ProcessGroup> layers_;
};

}  // namespace paceline::optim
