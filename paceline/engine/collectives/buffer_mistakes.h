#pragma once

// Compile-time errors for arguments that are not buffers; each tells the user what to write.

#include <cstddef>
#include <iterator>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "paceline/engine/core/dtype.h"

namespace paceline {

struct Buffer;
struct ConstBuffer;
class SymmetricBuffer;

namespace detail {

template <class T>
inline constexpr bool kIsSpan = false;
template <class T, std::size_t Extent>
inline constexpr bool kIsSpan<std::span<T, Extent>> = true;

// Whether T has elements that must not be written to.
template <class T>
inline constexpr bool kIsConstant = std::is_same_v<std::remove_cvref_t<T>, ConstBuffer>;
template <class T>
  requires requires(T& values) { std::data(values), std::size(values); }
inline constexpr bool kIsConstant<T> =
    std::is_const_v<std::remove_pointer_t<decltype(std::data(std::declval<T&>()))>>;

// True for types that do not convert to a ConstBuffer (NotReadable), or to a Buffer (NotWritable).
template <class T, class U = std::remove_cvref_t<T>>
concept NotReadable = !std::is_same_v<U, Buffer> && !std::is_same_v<U, ConstBuffer> && !kIsSpan<U>;
template <class T, class U = std::remove_cvref_t<T>>
concept NotWritable = !std::is_same_v<U, Buffer> && !(kIsSpan<U> && !kIsConstant<U>);

// U: the argument's type. kIsKept: whether the argument is the caller's variable, not a temporary.
template <class U, bool kIsKept>
constexpr void explain_mistake() {
  constexpr bool kNever = sizeof(U) == 0;
  if constexpr (std::is_same_v<U, SymmetricBuffer>) {
    static_assert(kNever, "write memory.as<float>() for symmetric memory of floats");
  } else if constexpr (requires(const U& tensor) { tensor.data_ptr(), tensor.numel(); }) {
    static_assert(
        kNever,
        "the methods of a group take memory: for a tensor write all_reduce(group, tensor), "
        "for a list all_reduce_coalesced(group, tensors), and so on");
  } else if constexpr (std::is_same_v<U, std::vector<bool>>) {
    static_assert(kNever, "std::vector<bool> has bits: use std::vector<std::uint8_t> instead");
  } else if constexpr (requires(U& values) { std::data(values), std::size(values); }) {
    using Element =
        std::remove_cv_t<std::remove_pointer_t<decltype(std::data(std::declval<U&>()))>>;
    if constexpr (dtype_number<Element>() < 0)
      require_dtype<Element>();
    else if constexpr (!kIsKept)
      static_assert(kNever, "keep the elements in a variable `values` and write std::span(values)");
    else
      static_assert(kNever, "write std::span(values) instead of values");
  } else if constexpr (std::is_pointer_v<U>) {
    static_assert(kNever, "a pointer has no count: write std::span(pointer, count)");
  } else if constexpr (std::is_arithmetic_v<U>) {
    static_assert(
        kNever, "write std::span(&value, 1) for a single value, or all_reduce_value(group, value)");
  } else {
    static_assert(
        kNever,
        "this argument is not memory: write std::span(values) for the elements of a container");
  }
}

}  // namespace detail

}  // namespace paceline
