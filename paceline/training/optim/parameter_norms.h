#pragma once

// Norms over whole parameters and whole models, of which this rank may have only parts: what other
// ranks have of a model (ModelParts), and the norms that LAMB and LARS need (ParameterNorms).

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/optim/parameter_rows.h"

namespace paceline::optim {

// Which parameters are parts of larger ones, where a model is divided among ranks, so that norms
// are those of the whole model, each parameter counted once. A value.
//
//   optimizer.set_model_parts({.model = ..., .layers = mesh.group("tp"), .divided = {weight}, ...});
//
// train::model_parts() (training/train/training_step.h) fills one in for a model whose layers say
// how they are divided.
struct ModelParts {
  // All ranks that together have one model; null: this one has all of it.
  std::shared_ptr<ProcessGroup> model;
  // The ranks among which single parameters are divided; null: none are.
  std::shared_ptr<ProcessGroup> layers;
  // Parameters of which this rank has a part, and the other ranks of `layers` the rest. The same
  // ones, in the optimizer's order, on all of these ranks.
  std::vector<at::Tensor> divided = {};
  // Parameters of which other ranks of `model` have the same values, and count them.
  std::vector<at::Tensor> copies = {};
};

// Error(kInvalid), naming `caller`, for parameters that are known to be one rank's share of a model
// (training/tensor/tensor_marks.h): a norm over them is not the model's. The second: for parameters
// that are themselves parts of larger ones, whose own norms are not those of the whole.
void require_whole_model(const char* caller, const std::vector<at::Tensor>& parameters);
void require_whole_parameters(const char* caller, const std::vector<at::Tensor>& parameters);

// Two norms over a whole parameter, or their squares' sums over some of its elements.
using NormPair = std::array<double, 2>;

// A norm adds up the blocks of the parameter's row in the order of the row, so that it has the same
// bits for any number of threads and of ranks among which the row is divided. Thread safety: set()
// may run in several threads, for different pieces.
class ParameterNorms {
 public:
  // A run of a parameter's elements within one block of its row; `slot` is where its partial norms
  // are stored.
  struct Piece {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::size_t slot = 0;
  };

  // Requires: `rows` outlives this.
  explicit ParameterNorms(const ParameterRows& rows) : rows_(rows) {}
  // After rows were made. Collective; a null group has one rank.
  void lay_out(ProcessGroup* group);
  // The numbers of parameters that are divided among the ranks of `layers`, in order.
  void divide(std::vector<std::size_t> parameters, std::shared_ptr<ProcessGroup> layers);

  // The pieces of this rank's elements.
  std::span<const Piece> own_pieces(std::size_t parameter) const;
  void set(const Piece& piece, const NormPair& squares);
  // Collective: gets the other ranks' sums. A parameter without a gradient here has none on the
  // other ranks either, and its norms are not read.
  void exchange();
  NormPair of(std::size_t parameter) const;

 private:
  NormPair squares_of(std::size_t parameter) const;

  const ParameterRows& rows_;
  ProcessGroup* group_ = nullptr;
  std::vector<std::vector<Piece>> pieces_;  // [parameter], in order
  at::Tensor sums_;                         // [slot, 2], the slots of one rank after the other's
  std::vector<std::size_t> divided_;        // parameters, in order
  std::vector<double> divided_sums_;        // two of each, over all its parts
  std::shared_ptr<ProcessGroup> layers_;
};

}  // namespace paceline::optim
