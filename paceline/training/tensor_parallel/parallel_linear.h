#pragma once

// Linear layers that are divided among the ranks of a group. A column-parallel layer has a part of
// the output features, a row-parallel one a part of the input features. A column-parallel layer
// followed by a row-parallel one, with any elementwise function between them, needs one all-reduce
// in the forward pass and one in the backward pass.
//
//   ColumnParallelLinear first(torch::nn::LinearOptions(64, 256), group);  // [N, 256 / ranks]
//   RowParallelLinear last(torch::nn::LinearOptions(256, 64), group);      // [N, 64] everywhere
//   auto output = last(torch::gelu(first(input)));
//
// Each rank initialises the whole torch::nn::Linear and keeps its part of the weights, so
// LibTorch's generator must be seeded equally on all ranks. (Ranks that are threads share the
// generator: they must build the layers one after another.) The whole layer exists briefly while a
// layer is constructed.
//
// Results and gradients equal those of the whole layer except for rounding, and are the same on
// every rank. The layers can also divide the positions among the ranks (sequence parallelism): dim
// 1 of [N, T, features].
//
// All ranks must run the layers in the same order. Error(kInvalid), which names rank and layer, if
// the number of ranks does not divide the features or an input has the wrong shape.
//
// Thread safety: none; one thread trains.

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>

#include <torch/nn/cloneable.h>
#include <torch/nn/options/linear.h>
#include <torch/nn/pimpl.h>

#include "paceline/training/autograd/differentiable_collectives.h"
#include "paceline/training/models/divided_layer.h"
#include "paceline/training/models/layers.h"

namespace paceline {

struct ColumnParallelOptions {
  models::InnerFeatures inner = {};  // the kinds of output features; no counts: one kind
  bool gather_output = false;        // returns the whole output on every rank; for one kind only
  bool sequence_parallel_input = false;  // the input has this rank's part of the positions
};

class ColumnParallelLinearImpl : public torch::nn::Cloneable<ColumnParallelLinearImpl>,
                                 public models::DividedLayer {
 public:
  ColumnParallelLinearImpl(const torch::nn::LinearOptions& linear, GroupPtr group,
                           const ColumnParallelOptions& parallel = {});
  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  // [..., in_features], the same on every rank -> [..., out_features / ranks]. With
  // `sequence_parallel_input`: [N, T / ranks, in_features] of this rank's positions -> [N, T,
  // out_features / ranks].
  at::Tensor forward(const at::Tensor& input);
  std::optional<models::Division> division_of(const std::string& parameter) const override;

  at::Tensor weight, bias;  // [out_features / ranks, in_features], [out_features / ranks]

 private:
  torch::nn::LinearOptions linear_;
  GroupPtr group_;
  ColumnParallelOptions parallel_;
  models::Division division_;
};
TORCH_MODULE(ColumnParallelLinear);

struct RowParallelOptions {
  models::InnerFeatures inner = {};  // the input features, of one kind
  bool whole_input = false;  // the input has all input features; each rank takes its part of them
  bool sequence_parallel_output = false;  // the output has this rank's part of the positions
};

class RowParallelLinearImpl : public torch::nn::Cloneable<RowParallelLinearImpl>,
                              public models::DividedLayer {
 public:
  RowParallelLinearImpl(const torch::nn::LinearOptions& linear, GroupPtr group,
                        const RowParallelOptions& parallel = {});
  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  // [..., in_features / ranks] -> [..., out_features], the same on every rank. With
  // `sequence_parallel_output`: [N, T, in_features / ranks] -> [N, T / ranks, out_features] of this
  // rank's positions.
  at::Tensor forward(const at::Tensor& input);
  std::optional<models::Division> division_of(const std::string& parameter) const override;

  at::Tensor weight, bias;  // [out_features, in_features / ranks]; [out_features] on every rank

 private:
  torch::nn::LinearOptions linear_;
  GroupPtr group_;
  RowParallelOptions parallel_;
  models::Division division_;
};
TORCH_MODULE(RowParallelLinear);

}  // namespace paceline
