#pragma once

// Layers of which each rank holds a part: how their weights are divided.
//
// Thread safety: all functions are pure.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>

namespace paceline::models {

// The layer's own parameter "weight". Do not keep the tensor: a clone of the model has a different
// one.
at::Tensor weight_of(const torch::nn::AnyModule& layer);

// The part of the whole layer's weights that a divided layer holds: the number of parts and which
// one it is. Plain data: nothing here communicates. Along one dimension a weight is a list of
// sections, each of which is cut into equal parts; the weight that computes queries, keys and
// values has three.
//
//   sections {4, 2}, part 1 of 2:   whole  a b c d | e f     here  c d | f
//
// Thread safety: all functions are pure.
struct Division {
  std::int64_t dim = 0;
  std::vector<std::int64_t> sections = {};  // lengths in the whole weight; `parts` divides each
  std::int64_t parts = 1, part = 0;

  std::vector<std::int64_t> whole_sizes(at::IntArrayRef part_sizes) const;
  // Returns a copy of this part of `whole`. Requires: along `dim`, `whole` has the total length of
  // the sections.
  at::Tensor part_of(const at::Tensor& whole) const;
  // Joins all parts, in order, into the whole weight: the inverse of part_of().
  at::Tensor joined(const std::vector<at::Tensor>& all_parts) const;
};

// The interface of a layer that holds a part of its weights; implemented in addition to
// torch::nn::Module.
class DividedLayer {
 public:
  virtual ~DividedLayer() = default;
  // The division of the layer's own parameter with this name; nullopt: the parameter is whole.
  virtual std::optional<Division> division_of(const std::string& parameter) const = 0;
};

using ParameterVisitor = std::function<void(const std::string& name, at::Tensor& parameter,
                                            const std::optional<Division>& division)>;
// Visits all parameters with their full names, in the order of named_parameters().
void visit_parameters(const torch::nn::Module& module, const ParameterVisitor& visitor);

}  // namespace paceline::models
