#pragma once

// Describes how a model is divided: which part of a layer's weights each rank holds, and which
// blocks of a transformer each stage of a pipeline has.
//
// Thread safety: all functions are pure.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace paceline::models {

// The part of the whole layer's weights that a divided layer holds: the number of parts and the
// index of this part. Plain data: no function communicates. Along one dimension a weight is a list
// of sections, each of which is cut into equal parts; the weight that computes queries, keys and
// values has three sections.
//
//   sections {4, 2}, parts 2, part 1:   whole  a b c d | e f     this part  c d | f
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

// The blocks of a transformer that a stage of a pipeline has: [begin, end). A value.
struct BlockRange {
  std::int64_t begin = 0, end = 0;

  // Returns the blocks of a stage of a pipeline; the numbers of blocks of two stages differ by at
  // most one. Error(kInvalid) when there are more stages than blocks.
  static BlockRange of_stage(std::int64_t num_blocks, int stage, int num_stages);
};

}  // namespace paceline::models
