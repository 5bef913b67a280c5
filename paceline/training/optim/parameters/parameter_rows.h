#pragma once

// The parameters of an optimizer in rows: one row for each element type or, if gradients are
// divided, one row for each unit of parameters. A row is cut into equal parts, one for each rank. A
// rank keeps the state of its part and, if gradients are divided, its gradients. None of the
// functions communicates.
//
// Thread safety: none.

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/training/optim/rules/tensor_blocks.h"
#include "paceline/training/tensor/tensor_view.h"

namespace paceline::optim {

// Parameters whose gradients are reduced together; each rank gets its part.
struct GradientUnit {
  std::vector<std::size_t> parameters;  // numbers of the parameters, in the order of `layout`
  FlatLayout layout;                    // has one part for each rank
  std::size_t number = 0;               // the number of the unit in the optimizer
};

// The part of a tensor of Optimizer::state() that one rank keeps: a contiguous range of its
// elements, in the order of its memory.
struct StatePart {
  std::string name;
  at::Tensor like;         // a parameter with the shape and the strides of the whole tensor
  at::Tensor elements;     // one float32 row in the optimizer's own memory; may be empty
  std::int64_t first = 0;  // index of the first element in the whole tensor
};

// Plans a row for each element type, in the parameters' order: a list of indices into `parameters`.
std::vector<std::vector<std::size_t>> rows_by_type(const std::vector<at::Tensor>& parameters);

// Plans units of parameters whose gradients are sent together: the units of `chosen`, whatever
// their size, and for the other parameters units of about `unit_bytes`, in which a large parameter
// has a unit of its own. A unit has one element type, so a chosen unit with several types is split
// by type. The units are ordered from the last parameter to the first, because gradients are
// computed in that order. Error(kInvalid) for a chosen parameter that is not in `parameters` or is
// in two chosen units.
std::vector<std::vector<std::size_t>> plan_units(
    const std::vector<at::Tensor>& parameters, std::size_t unit_bytes,
    const std::vector<std::vector<at::Tensor>>& chosen);

class ParameterRows {
 public:
  struct Row {
    at::ScalarType type;
    std::vector<std::size_t> parameters;  // numbers of the parameters
    std::vector<at::Tensor> tensors;
    FlatLayout layout;
    std::vector<at::Tensor> state;  // [name]: own part; the last one of a 16-bit row is the master
    at::Tensor gradients;  // if gradients are divided: this rank's part, until drop_gradients()
  };
  struct Division {
    int num_parts = 1;
    int own_part = 0;
    bool divides_gradients = false;
  };
  // Elements [first, last) of a parameter, in the order of its memory; empty if last <= first.
  using Run = std::pair<std::int64_t, std::int64_t>;

  // For each of `state_names`, one float32 tensor is kept for each parameter.
  explicit ParameterRows(std::vector<std::string> state_names)
      : state_names_(std::move(state_names)) {}
  // Adds parameters to the rows of their types; earlier parameters keep their state. Requires: the
  // rows are not divided.
  void add(const std::vector<at::Tensor>& parameters);
  // Makes new rows, with a state of zeros.
  void make(const std::vector<std::vector<std::size_t>>& plan, const Division& division);

  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  const std::vector<Row>& rows() const { return rows_; }
  const Division& division() const { return division_; }
  std::size_t row_number(std::size_t parameter) const { return places_[parameter].row; }
  const Row& row_of(std::size_t parameter) const { return rows_[row_number(parameter)]; }
  // The offset of element 0 of a parameter in its row.
  std::int64_t offset(std::size_t parameter) const;
  Run elements_in(std::size_t parameter, int part) const;
  Run own_elements(std::size_t parameter) const {
    return elements_in(parameter, division_.own_part);
  }

  const std::vector<std::string>& state_names() const { return state_names_; }
  // State `state_names().size()` is the float32 master of a 16-bit parameter.
  bool has_master(std::size_t parameter) const;
  std::size_t num_states(std::size_t parameter) const { return row_of(parameter).state.size(); }
  std::string state_name(std::size_t state, std::size_t parameter) const;
  // The address at which element 0 of the parameter is, or would be, in this rank's part of a
  // state.
  float* state_begin(std::size_t parameter, std::size_t state) const;
  at::Tensor own_state(std::size_t parameter, std::size_t state) const;
  std::vector<StatePart> state_parts() const;
  // Returns a parameter's tensor of a state. `row`: a row of that state with the parts of all
  // ranks.
  at::Tensor whole_state(std::size_t parameter, const at::Tensor& row) const;
  std::size_t num_state_bytes() const;

  // See OptimizerCore's functions of the same names.
  std::vector<OrderedGradient> gradients() const;
  std::vector<at::Tensor> gradient_memory() const;
  std::vector<GradientUnit> gradient_units() const;
  at::Tensor gradient_part(std::size_t unit);
  bool has_gradient(std::size_t parameter) const { return has_gradient_[parameter]; }
  void set_has_gradient(std::size_t parameter) { has_gradient_[parameter] = true; }
  void drop_gradients();
  // Drops this rank's part of one divided gradient; does nothing if gradients are not divided.
  void drop_gradient(std::size_t parameter);

 private:
  struct Place {
    std::size_t row = 0;
    std::size_t index = 0;
  };

  std::int64_t own_offset(std::size_t parameter) const;

  const std::vector<std::string> state_names_;
  std::vector<at::Tensor> parameters_;
  std::vector<Row> rows_;
  std::vector<Place> places_;  // [parameter]
  Division division_;
  std::vector<bool> has_gradient_;  // [parameter], if gradients are divided
};

}  // namespace paceline::optim
