#pragma once

// An argument that is not a buffer gives an error of a few lines that says what to write.

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

// Whether no other constructor of a buffer takes a T. A view of constant elements can be read, but
// not filled.
template <class T, bool kIsFilled, class U = std::remove_cvref_t<T>>
concept NoBuffer =
    !std::is_same_v<U, Buffer> && !(std::is_same_v<U, ConstBuffer> && !kIsFilled) &&
    (!kIsSpan<U> || (kIsFilled && std::is_const_v<std::remove_reference_t<decltype(*U().data())>>));

// T: the type of the argument, a reference if the caller keeps the object. kIsFilled: whether the
// operation writes to it.
template <class T, bool kIsFilled>
constexpr void explain_mistake() {
  using U = std::remove_cvref_t<T>;
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
    using Element = std::remove_pointer_t<decltype(std::data(std::declval<T&>()))>;
    if constexpr (dtype_number<std::remove_cv_t<Element>>() < 0)
      dtype_of<Element>();
    else if constexpr (kIsFilled && std::is_const_v<Element>)
      static_assert(kNever, "the operation writes to this argument, so it must not be const");
    else if constexpr (!std::is_reference_v<T>)
      static_assert(kNever, "keep the elements in a variable `values` and write std::span(values)");
    else
      static_assert(kNever, "write std::span(values) instead of values");
  } else if constexpr (std::is_same_v<U, ConstBuffer>) {
    static_assert(kNever,
                  "the operation writes to this argument: pass a Buffer, not a ConstBuffer");
  } else if constexpr (std::is_pointer_v<U>) {
    static_assert(kNever, "a pointer has no count: write std::span(pointer, count)");
  } else if constexpr (std::is_arithmetic_v<U>) {
    static_assert(
        kNever, "write std::span(&value, 1) for a single value, or all_reduce_value(group, value)");
  } else {
    static_assert(kNever,
                  "this is no memory: write std::span(values), with elements of float, ...");
  }
}

}  // namespace detail

}  // namespace paceline
