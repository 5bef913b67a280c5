// The reduce kernel's source, compiled once per instruction set: reduce_<isa>.cpp sets
// PACELINE_KERNEL to a namespace of its own, defines the conversions of its instruction set, and
// includes this file; the build compiles it with the matching flags. There is no include guard,
// because the file serves as a template. Nothing here may be an inline function with external
// linkage, or the linker would pick one instruction set's copy for all; hence the unnamed
// namespace.
//
// The including file defines kLanes and, if that is more than 1, these two functions for each of
// float, Half and Brain:
//   Lanes load(const T* from);       // kLanes elements at any address, widened
//   void store(Lanes value, T* to);  // rounded
// where Lanes has a float's operators.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "paceline/engine/collectives/kernels/reduce.h"

namespace paceline::PACELINE_KERNEL {
namespace {

// The number of elements combined at a time, small enough that the tree's intermediate results stay
// in the L1 cache.
constexpr std::size_t kBlock = 1024;

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
    if constexpr (!std::is_integral_v<T>) return a != a ? a : (b != b ? b : (b < a ? b : a));
    return b < a ? b : a;
  }
};
struct Max {
  template <class T>
  static T apply(T a, T b) {
    if constexpr (!std::is_integral_v<T>) return a != a ? a : (b != b ? b : (a < b ? b : a));
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

// The types that the compiler's own vectorisation does not convert well. An instruction set with
// several lanes loads and stores several such elements at a time.
template <class T>
constexpr bool kIsHalf = std::is_same_v<T, Half> || std::is_same_v<T, Brain>;

// Whether a result is combined and rounded in one loop. If the compiler has to vectorise the
// conversions of 16-bit types, it fails on such a loop; two loops are then two to four times as
// fast.
template <class T>
constexpr bool kRoundsAtOnce = kLanes > 1 || !kIsHalf<T>;

// Tells GCC that no iteration of a loop reads what another one has written, so that GCC adds no
// check for overlap.
#ifdef __clang__
#define PACELINE_INDEPENDENT_ITERATIONS
#else
#define PACELINE_INDEPENDENT_ITERATIONS _Pragma("GCC ivdep")
#endif

// Writes finish(Combine(a, b)) to each of `outs`, any of which may be `a` or `b`. Not inlined: all
// callers share one instance, because these loops take most of a kernel's compile time.
template <class Combine, class A, class B, class Finish, class... Out>
[[gnu::noinline]] void combine(const A* a, const B* b, std::size_t length, Finish finish,
                               Out*... outs) {
  std::size_t i = 0;
  if constexpr (kLanes > 1 && (kIsHalf<A> || kIsHalf<B> || (kIsHalf<Out> || ...))) {
    for (; i + kLanes <= length; i += kLanes) {
      const auto result = finish(Combine::apply(load(a + i), load(b + i)));
      (store(result, outs + i), ...);
    }
  }
  PACELINE_INDEPENDENT_ITERATIONS
  for (; i < length; ++i) {
    const auto result = finish(Combine::apply(widen(a[i]), widen(b[i])));
    (narrow(result, outs[i]), ...);
  }
}

// Writes finish(a) to `out`, which may be `a`.
template <class A, class Finish, class Out>
[[gnu::noinline]] void convert(const A* a, std::size_t length, Finish finish, Out* out) {
  std::size_t i = 0;
  if constexpr (kLanes > 1 && (kIsHalf<A> || kIsHalf<Out>)) {
    for (; i + kLanes <= length; i += kLanes) store(finish(load(a + i)), out + i);
  }
  PACELINE_INDEPENDENT_ITERATIONS
  for (; i < length; ++i) narrow(finish(widen(a[i])), out[i]);
}

// The operations that are applied to a result before it is rounded.
struct Keep {
  template <class V>
  V operator()(V value) const {
    return value;
  }
};
struct Scale {
  float factor;
  template <class V>
  V operator()(V value) const {
    return value * factor;
  }
};
struct Divide {
  float divisor;
  template <class V>
  V operator()(V value) const {
    return value / divisor;
  }
};

template <class T, class Combine>
class Tree {
 public:
  using Acc = typename Accumulator<T>::type;

  Tree(const ReduceSource* sources, std::size_t num_sources)
      : sources_(sources), num_sources_(num_sources) {}

  // If the last combination can be rounded at once, its result is written directly to the first two
  // outputs, and two contributions are combined in a single pass. Further outputs get copies.
  template <class Finish>
  void deliver(const ReduceArguments& a, Finish finish) const {
    T* const first = reinterpret_cast<T*>(a.outs[0]);
    T* const second = reinterpret_cast<T*>(a.outs[a.num_outs > 1 ? 1 : 0]);
    const bool is_pair =
        kRoundsAtOnce<T> && num_sources_ == 2 && !is_wide(0) && !is_wide(1) && a.num_outs <= 2;
    const std::size_t block = is_pair ? a.count : kBlock;
    for (std::size_t begin = 0; begin < a.count; begin += block) {
      const std::size_t length = std::min(block, a.count - begin);
      deliver_block(begin, length, finish, first + begin, second + begin);
      for (std::size_t other = 2; other < a.num_outs; ++other) {
        std::memcpy(reinterpret_cast<T*>(a.outs[other]) + begin, first + begin, length * sizeof(T));
      }
    }
  }

  // The result is neither divided nor narrowed; a later reduce takes it as a partial source.
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
  const T* at(std::size_t source, std::size_t begin) const {
    return reinterpret_cast<const T*>(sources_[source].data) + begin;
  }

  template <class Finish>
  void deliver_block(std::size_t begin, std::size_t length, Finish finish, T* first,
                     T* second) const {
    Acc left[kBlock];
    if constexpr (kRoundsAtOnce<T>) {
      if (num_sources_ > 1) return deliver_last(begin, length, finish, first, second, left);
    }
    subtree(0, num_sources_, begin, length, left);
    convert(left, length, finish, first);
    if (second != first) std::memcpy(second, first, length * sizeof(T));
  }

  // Computes the last combination; `left` is space for a block.
  template <class Finish>
  void deliver_last(std::size_t begin, std::size_t length, Finish finish, T* first, T* second,
                    Acc* left) const {
    const std::size_t num_left = left_of(0, num_sources_);
    const bool is_single = num_sources_ - num_left == 1 && !is_wide(num_left);
    if (is_single && num_left == 1 && !is_wide(0)) {
      finish_pair(at(0, begin), at(1, begin), length, finish, first, second);
      return;
    }
    subtree(0, num_left, begin, length, left);
    if (is_single) {
      finish_pair(left, at(num_left, begin), length, finish, first, second);
      return;
    }
    Acc right[kBlock];
    subtree(num_left, num_sources_ - num_left, begin, length, right);
    finish_pair(left, right, length, finish, first, second);
  }

  template <class A, class B, class Finish>
  static void finish_pair(const A* a, const B* b, std::size_t length, Finish finish, T* first,
                          T* second) {
    if (first == second) {
      combine<Combine>(a, b, length, finish, first);
    } else {
      combine<Combine>(a, b, length, finish, first, second);
    }
  }

  void load_block(std::size_t source, std::size_t begin, std::size_t length, Acc* out) const {
    if (is_wide(source)) {
      std::memcpy(out, reinterpret_cast<const Acc*>(sources_[source].data) + begin,
                  length * sizeof(Acc));
    } else {
      convert(at(source, begin), length, Keep{}, out);
    }
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

  // Puts the combination of sources [first, first + number) into `out`.
  void subtree(std::size_t first, std::size_t number, std::size_t begin, std::size_t length,
               Acc* out) const {
    if (number == 1) {
      load_block(first, begin, length, out);
      return;
    }
    if (number == 2 && !is_wide(first) && !is_wide(first + 1)) {
      combine<Combine>(at(first, begin), at(first + 1, begin), length, Keep{}, out);
      return;
    }
    const std::size_t left = left_of(first, number);
    subtree(first, left, begin, length, out);
    if (number - left == 1 && !is_wide(first + left)) {
      combine<Combine>(out, at(first + left, begin), length, Keep{}, out);
      return;
    }
    Acc right[kBlock];
    subtree(first + left, number - left, begin, length, right);
    combine<Combine>(out, right, length, Keep{}, out);
  }

  const ReduceSource* sources_;
  std::size_t num_sources_;
};

template <class T, class Combine>
void run(const ReduceArguments& a) {
  const Tree<T, Combine> tree(a.sources, a.num_sources);
  if (a.result == ReduceResult::kPartial) {
    tree.run_partial(a.outs[0], a.count);
  } else {
    tree.deliver(a, Keep{});
  }
}

// Multiplying by the inverse of a power of two gives the same bits as dividing by it.
template <class T>
void run_mean(const ReduceArguments& a) {
  if (a.result == ReduceResult::kPartial || a.divisor <= 1) return run<T, Sum>(a);
  const Tree<T, Sum> tree(a.sources, a.num_sources);
  const auto divisor = static_cast<float>(a.divisor);
  if (std::has_single_bit(a.divisor)) {
    tree.deliver(a, Scale{1 / divisor});
  } else {
    tree.deliver(a, Divide{divisor});
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
    run_mean<T>(a);  // no other operation is defined for these types
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

// For bools, sum and max are "or"; product and min are "and". Except for the sum, the result is
// that of the operation on the integers 0 and 1.
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
