#pragma once

// Calls of collectives without a group, or with the group in another place, give an error that says
// what to write.

#include <ATen/core/Tensor.h>

namespace paceline {

inline namespace internal {

template <class... Rest>
int all_reduce(const at::Tensor& /*tensor*/, const Rest&... /*rest*/) {
  static_assert(sizeof...(Rest) > 1000,
                "the group comes first: write all_reduce(group, tensor), with auto group = "
                "paceline::init_process_group()");
  return 0;
}

template <class... Rest>
int broadcast(const at::Tensor& /*tensor*/, const Rest&... /*rest*/) {
  static_assert(sizeof...(Rest) > 1000,
                "the group comes first: write broadcast(group, tensor, root), with auto group = "
                "paceline::init_process_group()");
  return 0;
}

template <class... Rest>
int all_gather(const at::Tensor& /*tensor*/, const Rest&... /*rest*/) {
  static_assert(sizeof...(Rest) > 1000,
                "the group comes first: write all_gather(group, tensor), with auto group = "
                "paceline::init_process_group()");
  return 0;
}

template <class... Rest>
int reduce_scatter(const at::Tensor& /*tensor*/, const Rest&... /*rest*/) {
  static_assert(sizeof...(Rest) > 1000,
                "the group comes first: write reduce_scatter(group, tensor), with auto group = "
                "paceline::init_process_group()");
  return 0;
}

}  // namespace internal

}  // namespace paceline
