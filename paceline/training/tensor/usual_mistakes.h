#pragma once

// Common mistakes in calls of collectives: no group, the group in another place, or memory that is
// not a tensor. Such a call does not compile, and the error shows what to write instead.

#include <type_traits>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/process_group.h"

namespace paceline {

inline namespace internal {

template <class T>
concept NoGroup = !std::is_convertible_v<T&, GroupRef>;
template <class T>
concept NoTensor = !std::is_convertible_v<T&, at::Tensor>;

template <NoGroup First, class... Rest>
int all_reduce(const First& /*first*/, const Rest&... /*rest*/) {
  static_assert(sizeof...(Rest) > 1000,
                "the group comes first: write all_reduce(group, tensor), with auto group = "
                "paceline::init_process_group()");
  return 0;
}

template <class Group, NoTensor Memory, class... Rest>
  requires(!NoGroup<Group>)
int all_reduce(const Group& /*group*/, const Memory& /*memory*/, const Rest&... /*rest*/) {
  static_assert(
      sizeof...(Rest) > 1000,
      "this is not a tensor: write group->all_reduce(std::span(values)) for other memory");
  return 0;
}

template <NoGroup First, class... Rest>
int broadcast(const First& /*first*/, const Rest&... /*rest*/) {
  static_assert(sizeof...(Rest) > 1000,
                "the group comes first: write broadcast(group, tensor, root), with auto group = "
                "paceline::init_process_group()");
  return 0;
}

template <class Group, NoTensor Memory, class... Rest>
  requires(!NoGroup<Group>)
int broadcast(const Group& /*group*/, const Memory& /*memory*/, const Rest&... /*rest*/) {
  static_assert(sizeof...(Rest) > 1000,
                "this is not a tensor: write group->broadcast(std::span(values), root) for other "
                "memory");
  return 0;
}

template <NoGroup First, class... Rest>
int all_gather(const First& /*first*/, const Rest&... /*rest*/) {
  static_assert(sizeof...(Rest) > 1000,
                "the group comes first: write all_gather(group, tensor), with auto group = "
                "paceline::init_process_group()");
  return 0;
}

template <NoGroup First, class... Rest>
int reduce_scatter(const First& /*first*/, const Rest&... /*rest*/) {
  static_assert(sizeof...(Rest) > 1000,
                "the group comes first: write reduce_scatter(group, tensor), with auto group = "
                "paceline::init_process_group()");
  return 0;
}

}  // namespace internal

}  // namespace paceline
