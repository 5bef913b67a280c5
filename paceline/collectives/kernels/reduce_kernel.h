// The reduce kernel's source, compiled once per instruction set: the including file sets
// PACELINE_KERNEL to a namespace of its own and the build gives that file the matching flags. No
// include guard: it is a template in text. Nothing here may be an inline function with external
// linkage, or the linker would pick one instruction set's copy for all; hence the unnamed
// namespace.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "paceline/collectives/kernels/reduce_variant.h"

namespace paceline::PACELINE_KERNEL {
namespace {

// Elements combined at a time: small enough that the tree's intermediate results stay in the L1
// cache.
constexpr std::size_t kBlock = 1024;

struct Half {
  std::uint16_t bits;
};
struct Brain {
  std::uint16_t bits;
};
struct Bool {
  std::uint8_t value;
};

template <class T>
struct Accumulator {
  using type = T;
};
template <>
struct Accumulator<Half> {
  using type = float;
};
template <>
struct Accumulator<Brain> {
  using type = float;
};
template <>
struct Accumulator<Bool> {
  using type = std::uint8_t;
};

template <class T>
T widen(T value) {
  return value;
}
float widen(Brain value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}
// Shifting the exponent and mantissa into place gives the value times 2^-112; one multiplication
// repairs it, subnormals included. Infinity and NaN have the largest exponent, which the
// multiplication cannot reach, so it is set by hand.
float widen(Half value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = static_cast<std::uint32_t>(value.bits & 0x7fffu) << 13;
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112f;
  const std::uint32_t special = magnitude >= (0x7c00u << 13) ? 0x7f800000u : 0u;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | special | sign);
}
std::uint8_t widen(Bool value) { return static_cast<std::uint8_t>(value.value != 0); }

template <class T>
void narrow(T value, T& out) {
  out = value;
}
void narrow(float value, Brain& out) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  out.bits = static_cast<std::uint16_t>(nan ? (bits >> 16) | 0x40u : rounded >> 16);
}
void narrow(float value, Half& out) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  // Subnormal halves: adding 0.5 lets the addition itself round the mantissa to the 10 bits that
  // stay.
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  const std::uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  std::uint32_t result = magnitude < (113u << 23) ? subnormal : normal;
  result = magnitude >= 0x477ff000u ? 0x7c00u : result;  // rounds to 65536 or more: infinity
  result = magnitude > 0x7f800000u ? 0x7e00u : result;   // NaN
  out.bits = static_cast<std::uint16_t>(result | sign);
}
void narrow(std::uint8_t value, Bool& out) { out.value = value; }

// Signed integers wrap around like unsigned ones.
template <class T>
using Wrapping = typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>,
                                             std::type_identity<T>>::type;

struct Sum {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
  }
};
struct Product {
  template <class T>
  static T apply(T a, T b) {
    // 16-bit operands would be promoted to int, whose overflow is undefined.
    using Wide =
        std::conditional_t<std::is_integral_v<T> && (sizeof(T) < 4), std::uint32_t, Wrapping<T>>;
    return static_cast<T>(static_cast<Wide>(a) * static_cast<Wide>(b));
  }
};
struct Min {
  template <class T>
  static T apply(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) return a != a ? a : (b != b ? b : (b < a ? b : a));
    return b < a ? b : a;
  }
};
struct Max {
  template <class T>
  static T apply(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) return a != a ? a : (b != b ? b : (a < b ? b : a));
    return a < b ? b : a;
  }
};
struct BitAnd {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a & b);
  }
};
struct BitOr {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a | b);
  }
};
struct BitXor {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};

template <class T, class Combine>
class Tree {
 public:
  using Acc = typename Accumulator<T>::type;

  Tree(const ReduceSource* sources, std::size_t num_sources)
      : sources_(sources), num_sources_(num_sources) {}

  void run(const ReduceArguments& a, float divisor) const {
    if constexpr (std::is_same_v<T, Acc>) {
      if (num_sources_ == 2 && a.num_outs <= 2 && run_pair(a, divisor)) return;
    }
    T* out = reinterpret_cast<T*>(a.outs[0]);
    Acc block[kBlock];
    for (std::size_t begin = 0; begin < a.count; begin += kBlock) {
      const std::size_t length = std::min(kBlock, a.count - begin);
      subtree(0, num_sources_, begin, length, block);
      if constexpr (std::is_floating_point_v<Acc>) {
        if (divisor != 1.0f) {
          for (std::size_t i = 0; i < length; ++i) block[i] /= static_cast<Acc>(divisor);
        }
      }
      for (std::size_t i = 0; i < length; ++i) narrow(block[i], out[begin + i]);
      for (std::size_t other = 1; other < a.num_outs; ++other) {
        std::memcpy(reinterpret_cast<T*>(a.outs[other]) + begin, out + begin, length * sizeof(T));
      }
    }
  }

  // Neither divided nor narrowed: what a later reduce takes as a partial source.
  void run_partial(std::byte* out_bytes, std::size_t count) const {
    Acc* out = reinterpret_cast<Acc*>(out_bytes);
    Acc block[kBlock];
    for (std::size_t begin = 0; begin < count; begin += kBlock) {
      const std::size_t length = std::min(kBlock, count - begin);
      subtree(0, num_sources_, begin, length, block);
      std::memcpy(out + begin, block, length * sizeof(Acc));
    }
  }

 private:
  // Partial sums of a type that is its own accumulator are read like any contribution.
  bool is_wide(std::size_t source) const {
    return !std::is_same_v<T, Acc> && sources_[source].is_partial;
  }
  // Two sources of the accumulator's type, one or two places: in one pass. Dividing by a power of
  // two gives the bits of multiplying by its inverse. False when there is no such way.
  bool run_pair(const ReduceArguments& a, float divisor) const {
    T* first = reinterpret_cast<T*>(a.outs[0]);
    T* last = reinterpret_cast<T*>(a.outs[a.num_outs - 1]);
    if (divisor == 1.0f) {
      combine_for_both(at(0, 0), at(1, 0), first, last, a.count, [](T sum) { return sum; });
      return true;
    }
    if constexpr (std::is_floating_point_v<T>) {
      if (divisor != 2.0f) return false;
      combine_for_both(at(0, 0), at(1, 0), first, last, a.count,
                       [](T sum) { return sum * T(0.5); });
      return true;
    }
    return false;
  }

  const T* at(std::size_t source, std::size_t begin) const {
    return reinterpret_cast<const T*>(sources_[source].data) + begin;
  }

  void load(std::size_t source, std::size_t begin, std::size_t length, Acc* out) const {
    if (is_wide(source)) {
      std::memcpy(out, reinterpret_cast<const Acc*>(sources_[source].data) + begin,
                  length * sizeof(Acc));
      return;
    }
    const T* from = at(source, begin);
    for (std::size_t i = 0; i < length; ++i) out[i] = widen(from[i]);
  }

  // How many of the sources [first, first + number) make up the left subtree.
  std::size_t left_of(std::size_t first, std::size_t number) const {
    std::size_t ranks = 0;
    for (std::size_t i = 0; i < number; ++i) ranks += sources_[first + i].num_ranks;
    const std::size_t wanted = std::bit_floor(ranks - 1);
    std::size_t covered = sources_[first].num_ranks;
    std::size_t left = 1;
    while (covered < wanted && left < number - 1) covered += sources_[first + left++].num_ranks;
    return left;
  }

  template <class A, class B, class Out>
  static void combine(const A* a, const B* b, Out* out, std::size_t length) {
#pragma GCC ivdep
    for (std::size_t i = 0; i < length; ++i) out[i] = Combine::apply(widen(a[i]), widen(b[i]));
  }

  template <class Finish>
  static void combine_for_both(const T* a, const T* b, T* first, T* last, std::size_t length,
                               Finish finish) {
    if (first == last) {
#pragma GCC ivdep
      for (std::size_t i = 0; i < length; ++i) first[i] = finish(Combine::apply(a[i], b[i]));
      return;
    }
#pragma GCC ivdep
    for (std::size_t i = 0; i < length; ++i) {
      const T sum = finish(Combine::apply(a[i], b[i]));
      first[i] = sum;
      last[i] = sum;
    }
  }

  // The sum of sources [first, first + number) into `out`.
  void subtree(std::size_t first, std::size_t number, std::size_t begin, std::size_t length,
               Acc* out) const {
    if (number == 1) {
      load(first, begin, length, out);
      return;
    }
    if (number == 2 && !is_wide(first) && !is_wide(first + 1)) {
      combine(at(first, begin), at(first + 1, begin), out, length);
      return;
    }
    const std::size_t left = left_of(first, number);
    subtree(first, left, begin, length, out);
    if (number - left == 1 && !is_wide(first + left)) {
      combine(out, at(first + left, begin), out, length);
      return;
    }
    Acc right[kBlock];
    subtree(first + left, number - left, begin, length, right);
    combine(out, right, out, length);
  }

  const ReduceSource* sources_;
  std::size_t num_sources_;
};

template <class T, class Combine>
void run(const ReduceArguments& a, float divisor = 1.0f) {
  const Tree<T, Combine> tree(a.sources, a.num_sources);
  if (a.result == ReduceResult::kPartial) {
    tree.run_partial(a.outs[0], a.count);
  } else {
    tree.run(a, divisor);
  }
}

template <class T>
void dispatch_op(const ReduceArguments& a) {
  using Acc = typename Accumulator<T>::type;
  switch (a.op) {
    case ReduceOp::kSum:
      return run<T, Sum>(a);
    case ReduceOp::kProduct:
      return run<T, Product>(a);
    case ReduceOp::kMin:
      return run<T, Min>(a);
    case ReduceOp::kMax:
      return run<T, Max>(a);
    default:
      break;
  }
  if constexpr (std::is_floating_point_v<Acc>) {
    run<T, Sum>(a, static_cast<float>(a.num_ranks));  // kMean; nothing else is defined here
  } else {
    switch (a.op) {
      case ReduceOp::kBitAnd:
        return run<T, BitAnd>(a);
      case ReduceOp::kBitOr:
        return run<T, BitOr>(a);
      default:
        return run<T, BitXor>(a);
    }
  }
}

// Sum and max of bools are "or", product and min are "and": the same as on the widened 0 and 1, but
// for the sum.
void dispatch_bool(ReduceArguments a) {
  if (a.op == ReduceOp::kSum) a.op = ReduceOp::kBitOr;
  dispatch_op<Bool>(a);
}

}  // namespace

void reduce(const ReduceArguments& a) {
  switch (a.dtype) {
    case Dtype::kFloat32:
      return dispatch_op<float>(a);
    case Dtype::kFloat64:
      return dispatch_op<double>(a);
    case Dtype::kFloat16:
      return dispatch_op<Half>(a);
    case Dtype::kBfloat16:
      return dispatch_op<Brain>(a);
    case Dtype::kInt8:
      return dispatch_op<std::int8_t>(a);
    case Dtype::kInt16:
      return dispatch_op<std::int16_t>(a);
    case Dtype::kInt32:
      return dispatch_op<std::int32_t>(a);
    case Dtype::kInt64:
      return dispatch_op<std::int64_t>(a);
    case Dtype::kUint8:
      return dispatch_op<std::uint8_t>(a);
    case Dtype::kBool:
      return dispatch_bool(a);
  }
}

}  // namespace paceline::PACELINE_KERNEL
