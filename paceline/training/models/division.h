#pragma once

// A layer of which a model has a part: which part of the whole layer's weights it holds. Data that
// knows of no ranks: a number of parts, and the number of one. Along one dimension a weight is a
// list of sections, each of which is cut into equal parts; the weight that makes queries, keys and
// values has three.
//
//   sections {4, 2}, part 1 of 2:   whole  a b c d | e f     here  c d | f
//
// Thread safety: pure functions.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

namespace paceline::models {

struct Division {
  std::int64_t dim = 0;
  std::vector<std::int64_t> sections =
      {};  // lengths along `dim` in the whole; `parts` divides each
  std::int64_t parts = 1, part = 0;

  std::vector<std::int64_t> whole_sizes(at::IntArrayRef part_sizes) const;
  // A copy. Requires: `whole` has the sections' length along `dim`.
  at::Tensor part_of(const at::Tensor& whole) const;
  // The whole from all parts, in order: the inverse of part_of().
  at::Tensor joined(const std::vector<at::Tensor>& all_parts) const;
};

// What a layer that holds a part of its weights implements beside torch::nn::Module.
class DividedLayer {
 public:
  virtual ~DividedLayer() = default;
  // Of its own parameter with this name; nothing: the parameter is whole.
  virtual std::optional<Division> division_of(const std::string& parameter) const = 0;
};

using ParameterVisitor = std::function<void(const std::string& name, at::Tensor& parameter,
                                            const std::optional<Division>& division)>;
// All parameters with their full names, in the order of named_parameters().
void visit_parameters(const torch::nn::Module& module, const ParameterVisitor& visitor);

}  // namespace paceline::models
