#pragma once

// Which parameters share a row of an optimizer's memory.

#include <cstddef>
#include <vector>

#include <ATen/core/Tensor.h>

namespace paceline::optim {

// One row for each element type, of numbers of `parameters` in their order.
std::vector<std::vector<std::size_t>> rows_by_type(const std::vector<at::Tensor>& parameters);

// Units whose gradients travel together: those of `chosen`, whatever their size, and for the other
// parameters units of about `unit_bytes`, in which large ones stay alone. A unit has one element
// type, so that a chosen one of several types becomes several. From the last parameter to the
// first, as gradients come. Error(kInvalid) for a chosen parameter that is not one of `parameters`
// or is chosen twice.
std::vector<std::vector<std::size_t>> plan_units(
    const std::vector<at::Tensor>& parameters, std::size_t unit_bytes,
    const std::vector<std::vector<at::Tensor>>& chosen);

}  // namespace paceline::optim
