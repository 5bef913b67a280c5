// Every call on tensors, with tensors of every memory layout on all ranks or on one rank only. If a
// call succeeds, the elements are right; if it fails, every rank gets an error.

#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "paceline/training/tensor/collectives.h"
#include "paceline/training/tensor/shaped_messages.h"
#include "paceline/training/tensor/tensor_call.h"

#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using Tensors = std::vector<at::Tensor>;
using Layout = std::function<at::Tensor(const at::Tensor& contiguous)>;

constexpr int kWorld = 2;

// The outcome of a call in which one rank's tensor has another layout.
enum class Outcome { kRight, kRefused };

// How a call takes tensors; this decides the outcome for each layout.
enum class Takes {
  kMemoryOrder,   // dense tensors in memory order, others through a copy
  kDense,         // dense tensors in memory order, no others
  kLogicalOrder,  // contiguous tensors in place, others through a copy
  kContiguous,    // only contiguous tensors
};

struct NamedCall {
  const char* name;
  Takes takes;
  unsigned writers;  // the ranks whose tensor the call writes, one bit for each
  // Runs the call and returns the results of this rank.
  std::function<Tensors(ProcessGroup& group, const at::Tensor& tensor)> call;
};

constexpr unsigned kNone = 0, kRank0 = 1, kRank1 = 2, kBoth = 3;

struct NamedLayout {
  const char* name;
  bool is_dense;
  bool is_contiguous;
  bool shares_memory;  // several elements have one address
  Layout of;
};

at::Tensor every_second(const at::Tensor& tensor) {
  auto sizes = tensor.sizes().vec();
  sizes.back() *= 2;
  const at::Tensor slice = at::full(sizes, -1, tensor.options()).slice(-1, 0, sizes.back(), 2);
  return slice.copy_(tensor);
}

const std::vector<NamedLayout>& memory_layouts() {
  static const std::vector<NamedLayout> all = {
      {"contiguous", true, true, false, [](const at::Tensor& x) { return x.clone(); }},
      {"transposed", true, false, false,
       [](const at::Tensor& x) {
         return x.transpose(0, 1).clone(at::MemoryFormat::Contiguous).transpose(0, 1);
       }},
      {"channels_last", true, false, false,
       [](const at::Tensor& x) { return x.clone(at::MemoryFormat::ChannelsLast); }},
      {"sliced", false, false, false, every_second},
      {"expanded", false, false, true,
       [](const at::Tensor& x) { return x.narrow(-1, 0, 1).clone().expand(x.sizes()); }},
  };
  return all;
}

void wait_for(const WorkPtr& work) { work->wait(); }

// The sizes of a tensor with `n` / `parts` times as many rows.
std::vector<std::int64_t> rows_of(const at::Tensor& tensor, std::int64_t n, std::int64_t parts) {
  auto sizes = tensor.sizes().vec();
  sizes[0] = sizes[0] * n / parts;
  return sizes;
}

// The ranks' rows; every rank's tensor has 4 rows.
const std::vector<std::int64_t> kRows = {3, 1};

const std::vector<NamedCall>& tensor_calls() {
  using enum Takes;
  using G = ProcessGroup&;
  using T = const at::Tensor&;
  static const auto doubled = [](T x) { return at::empty(rows_of(x, 2, 1)); };
  static const auto half = [](T x) { return at::empty(rows_of(x, 1, 2)); };
  static const std::vector<std::int64_t> even = {2, 2};
  static const std::vector<NamedCall> all = {
      {"all_reduce", kMemoryOrder, kBoth,
       [](G g, T x) {
         all_reduce(g, x);
         return Tensors{x};
       }},
      {"all_reduce_async", kDense, kBoth,
       [](G g, T x) {
         wait_for(all_reduce(g, x, ReduceOp::kSum, {.async_op = true}));
         return Tensors{x};
       }},
      {"all_reduce_into_another", kMemoryOrder, kNone,
       [](G g, T x) {
         const at::Tensor sum = at::empty(x.sizes());
         run(g, {.op = Op::kAllReduce, .input = x, .output = sum});
         return Tensors{sum};
       }},
      {"broadcast", kMemoryOrder, kBoth,
       [](G g, T x) {
         broadcast(g, x, 1);
         return Tensors{x};
       }},
      {"broadcast_async", kDense, kBoth,
       [](G g, T x) {
         wait_for(broadcast(g, x, 0, {.async_op = true}));
         return Tensors{x};
       }},
      {"reduce", kMemoryOrder, kBoth,
       [](G g, T x) {
         reduce(g, x, 1);
         return g.rank() == 1 ? Tensors{x} : Tensors{};
       }},
      {"reduce_async", kDense, kBoth,
       [](G g, T x) {
         wait_for(reduce(g, x, 0, ReduceOp::kSum, {.async_op = true}));
         return g.rank() == 0 ? Tensors{x} : Tensors{};
       }},
      {"all_gather", kLogicalOrder, kNone, [](G g, T x) { return all_gather(g, x); }},
      {"all_gather_into_tensor", kLogicalOrder, kNone,
       [](G g, T x) { return Tensors{all_gather_into_tensor(g, x)}; }},
      {"all_gather_into_tensor_async", kContiguous, kNone,
       [](G g, T x) {
         const at::Tensor all_of = doubled(x);
         wait_for(all_gather_into_tensor(g, all_of, x, {.async_op = true}));
         return Tensors{all_of};
       }},
      {"all_gather_v", kLogicalOrder, kNone,
       [](G g, T x) {
         return Tensors{
             all_gather_v(g, x.narrow(0, 0, kRows[static_cast<std::size_t>(g.rank())]), kRows)};
       }},
      {"all_gather_v_async", kContiguous, kNone,
       [](G g, T x) {
         const at::Tensor all_of = doubled(x);
         wait_for(all_gather_v(g, all_of, x, {4, 4}, {.async_op = true}));
         return Tensors{all_of};
       }},
      {"gather", kLogicalOrder, kNone, [](G g, T x) { return gather(g, x, 1); }},
      {"gather_async", kContiguous, kNone,
       [](G g, T x) {
         const at::Tensor all_of = g.rank() == 1 ? doubled(x) : at::Tensor();
         wait_for(gather(g, all_of, x, 1, {.async_op = true}));
         return g.rank() == 1 ? Tensors{all_of} : Tensors{};
       }},
      {"scatter_into_it", kLogicalOrder, kBoth,
       [](G g, T x) {
         const at::Tensor one = x.clone(at::MemoryFormat::Contiguous);
         scatter(g, x, g.rank() == 1 ? Tensors{one, one + 1} : Tensors{}, 1);
         return Tensors{x};
       }},
      {"scatter_of_it", kLogicalOrder, kNone,
       [](G g, T x) {
         const at::Tensor own = at::empty(x.sizes());
         scatter(g, own, g.rank() == 1 ? Tensors{x, x + 1} : Tensors{}, 1);
         return Tensors{own};
       }},
      {"scatter_async", kContiguous, kBoth,
       [](G g, T x) {
         const Tensors parts =
             at::arange(2 * x.numel(), at::kFloat).view(rows_of(x, 2, 1)).chunk(2);
         wait_for(scatter(g, x, g.rank() == 0 ? parts : Tensors{}, 0, {.async_op = true}));
         return Tensors{x};
       }},
      {"reduce_scatter", kLogicalOrder, kNone,
       [](G g, T x) { return Tensors{reduce_scatter(g, x)}; }},
      {"reduce_scatter_async", kContiguous, kNone,
       [](G g, T x) {
         const at::Tensor own = half(x);
         wait_for(reduce_scatter(g, own, x, ReduceOp::kSum, {.async_op = true}));
         return Tensors{own};
       }},
      {"reduce_scatter_v", kLogicalOrder, kNone,
       [](G g, T x) { return Tensors{reduce_scatter_v(g, x, kRows)}; }},
      {"reduce_scatter_v_async", kContiguous, kNone,
       [](G g, T x) {
         const at::Tensor own = half(x);
         wait_for(reduce_scatter_v(g, own, x, even, ReduceOp::kSum, {.async_op = true}));
         return Tensors{own};
       }},
      {"all_to_all_single", kLogicalOrder, kNone,
       [](G g, T x) { return Tensors{all_to_all_single(g, x)}; }},
      {"all_to_all_single_async", kContiguous, kNone,
       [](G g, T x) {
         const at::Tensor own = at::empty(x.sizes());
         wait_for(all_to_all_single(g, own, x, {.async_op = true}));
         return Tensors{own};
       }},
      {"all_to_all_v", kLogicalOrder, kNone,
       [](G g, T x) {
         return Tensors{all_to_all_single(
             g, x,
             g.rank() == 0 ? std::vector<std::int64_t>{3, 2} : std::vector<std::int64_t>{1, 2},
             g.rank() == 0 ? kRows : even)};
       }},
      {"all_to_all_v_async", kContiguous, kNone,
       [](G g, T x) {
         const at::Tensor own = at::empty(x.sizes());
         wait_for(all_to_all_single(g, own, x, even, even, {.async_op = true}));
         return Tensors{own};
       }},
      {"all_reduce_coalesced", kMemoryOrder, kBoth,
       [](G g, T x) {
         const at::Tensor first = at::ones({3});
         all_reduce_coalesced(g, {first, x});
         return Tensors{first, x};
       }},
      {"all_reduce_coalesced_async", kDense, kBoth,
       [](G g, T x) {
         wait_for(all_reduce_coalesced(g, {x}, ReduceOp::kSum, {.async_op = true}));
         return Tensors{x};
       }},
      {"broadcast_coalesced", kMemoryOrder, kBoth,
       [](G g, T x) {
         const at::Tensor first = at::ones({3, 2});
         broadcast_coalesced(g, {first, x}, 0);
         return Tensors{first, x};
       }},
      {"broadcast_coalesced_async", kDense, kBoth,
       [](G g, T x) {
         wait_for(broadcast_coalesced(g, {x}, 1, {.async_op = true}));
         return Tensors{x};
       }},
      {"all_gather_coalesced", kLogicalOrder, kNone,
       [](G g, T x) {
         const at::Tensor all_of = doubled(x);
         all_gather_coalesced(g, {all_of}, {x});
         return Tensors{all_of};
       }},
      {"all_gather_coalesced_async", kContiguous, kNone,
       [](G g, T x) {
         const at::Tensor all_of = doubled(x);
         wait_for(all_gather_coalesced(g, {all_of}, {x}, {.async_op = true}));
         return Tensors{all_of};
       }},
      {"reduce_scatter_coalesced", kLogicalOrder, kNone,
       [](G g, T x) {
         const at::Tensor own = half(x);
         reduce_scatter_coalesced(g, {own}, {x});
         return Tensors{own};
       }},
      {"reduce_scatter_coalesced_async", kContiguous, kNone,
       [](G g, T x) {
         const at::Tensor own = half(x);
         wait_for(reduce_scatter_coalesced(g, {own}, {x}, ReduceOp::kSum, {.async_op = true}));
         return Tensors{own};
       }},
      {"send_and_recv", kMemoryOrder, kRank1,
       [](G g, T x) {
         g.rank() == 0 ? send(g, x, 1) : static_cast<void>(recv(g, x, 0));
         g.barrier();
         return Tensors{x};
       }},
      {"send_and_recv_async", kDense, kRank0,
       [](G g, T x) {
         wait_for(g.rank() == 1 ? isend(g, x, 0) : irecv(g, x, 1));
         g.barrier();
         return Tensors{x};
       }},
      {"batch_isend_irecv", kDense, kBoth,
       [](G g, T x) {
         const at::Tensor sent = x.clone();  // clone() gives it a dense layout
         for (const auto& work : batch_isend_irecv(
                  g, {{Op::kSend, sent, 1 - g.rank()}, {Op::kReceive, x, 1 - g.rank()}}))
           work->wait();
         g.barrier();
         return Tensors{x};
       }},
      {"send_with_shape", kLogicalOrder, kNone,
       [](G g, T x) {
         if (g.rank() == 0) send_with_shape(g, x, 1);
         Tensors received;
         if (g.rank() == 1) received.push_back(recv_with_shape(g, 0).tensor);
         g.barrier();
         return received;
       }},
  };
  return all;
}

// The memory of the tensors. Symmetric tensors are large enough to be used in place.
struct Memory {
  TransportKind transport;
  bool is_symmetric;
  std::int64_t width() const { return is_symmetric ? 1000 : 5; }
};

// This rank's values: equal along the last dimension, so that the tensor can be expanded.
at::Tensor values_of_rank(int rank, const Memory& memory) {
  const at::Tensor rows =
      at::arange(24, at::kFloat).view({4, 3, 2, 1}) + 100.0f * static_cast<float>(rank);
  return rows.expand({4, 3, 2, memory.width()}).contiguous();
}

// The same tensor in the given memory. Every rank allocates the same number of bytes.
at::Tensor placed(ProcessGroup& group, const at::Tensor& tensor, const Memory& memory) {
  if (!memory.is_symmetric) return tensor;
  const at::Tensor place = empty_symmetric(group, {2 * 24 * memory.width()});
  const auto count = static_cast<std::int64_t>(tensor.storage().nbytes() / sizeof(float));
  place.narrow(0, 0, count).copy_(tensor.as_strided({count}, {1}, 0));
  return place.as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
}

bool is_equal(const Tensors& a, const Tensors& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!at::equal(a[i], b[i])) return false;
  }
  return true;
}

// Whether a call takes this layout on these ranks.
bool takes(const NamedCall& call, const NamedLayout& layout, unsigned ranks) {
  if (call.takes == Takes::kDense && !layout.is_dense) return false;
  if (call.takes == Takes::kContiguous && !layout.is_contiguous) return false;
  return (call.writers & ranks) == 0 || !layout.shares_memory;
}

// Calls first with contiguous tensors, then with the layout that `layout_of` gives each rank.
void expect_outcome(const NamedCall& call, const Memory& memory, Outcome expected,
                    const std::function<Layout(int rank)>& layout_of) {
  std::vector<char> is_right(kWorld, 0);
  const auto results = harness::run_ranks(
      kWorld,
      [&](ProcessGroup& group) {
        const at::Tensor values = values_of_rank(group.rank(), memory);
        const Tensors wanted = call.call(group, values.clone());
        const Tensors found =
            call.call(group, placed(group, layout_of(group.rank())(values), memory));
        is_right[static_cast<std::size_t>(group.rank())] = is_equal(wanted, found) ? 1 : 0;
      },
      {.transport = memory.transport});
  for (int rank = 0; rank < kWorld; ++rank) {
    const auto& error = results[static_cast<std::size_t>(rank)].error;
    if (expected == Outcome::kRefused) {
      EXPECT_TRUE(error.has_value()) << "rank " << rank;
    } else {
      EXPECT_FALSE(error.has_value()) << "rank " << rank << ": " << error->what();
      EXPECT_TRUE(is_right[static_cast<std::size_t>(rank)]) << "rank " << rank;
    }
  }
}

class LayoutsTest : public testing::TestWithParam<Memory> {};

TEST_P(LayoutsTest, every_rank_may_have_tensors_of_one_layout) {
  for (const NamedCall& call : tensor_calls()) {
    for (const NamedLayout& layout : memory_layouts()) {
      SCOPED_TRACE(std::string(call.name) + ", all " + layout.name);
      expect_outcome(call, GetParam(),
                     takes(call, layout, kBoth) ? Outcome::kRight : Outcome::kRefused,
                     [&](int) { return layout.of; });
    }
  }
}

TEST_P(LayoutsTest, one_rank_with_another_layout_is_right_or_an_error_on_every_rank) {
  for (const NamedCall& call : tensor_calls()) {
    for (const NamedLayout& layout : memory_layouts()) {
      for (int odd = 0; odd < kWorld; ++odd) {
        SCOPED_TRACE(std::string(call.name) + ", rank " + std::to_string(odd) + " " + layout.name);
        // A tensor that is not dense is sent as a copy in the order of the other rank's tensor. A
        // dense one is sent in its own order.
        const bool travels_otherwise =
            (call.takes == Takes::kMemoryOrder || call.takes == Takes::kDense) && layout.is_dense &&
            !layout.is_contiguous;
        const bool is_relaid = std::string(call.name) == "all_reduce_into_another";
        const bool is_right = takes(call, layout, 1u << odd) && (!travels_otherwise || is_relaid);
        expect_outcome(call, GetParam(), is_right ? Outcome::kRight : Outcome::kRefused,
                       [&](int rank) { return rank == odd ? layout.of : memory_layouts()[0].of; });
      }
    }
  }
}

TEST_P(LayoutsTest, one_rank_with_another_shape_is_an_error_on_every_rank) {
  for (const NamedCall& call : tensor_calls()) {
    if (std::string(call.name) == "send_with_shape") continue;  // accepts any shape
    for (int odd = 0; odd < kWorld; ++odd) {
      // Rank 0 contributes nothing.
      if (std::string(call.name) == "scatter_of_it" && odd == 0) continue;
      SCOPED_TRACE(std::string(call.name) + ", rank " + std::to_string(odd));
      expect_outcome(call, GetParam(), Outcome::kRefused, [&](int rank) {
        return [rank, odd](const at::Tensor& x) {
          return rank == odd ? x.view({4, 3, x.size(3), 2}).clone() : x.clone();
        };
      });
    }
  }
}

// Tensors without elements, without dimensions, and with dimensions of one element, whose strides
// have no meaning.
TEST_P(LayoutsTest, small_tensors_are_compared_by_their_sizes_alone) {
  struct Pair {
    at::Tensor one, other;
    bool may_meet;
  };
  const at::Tensor odd_strides = at::ones({6}).as_strided({1, 6}, {17, 1});
  for (const auto& [one, other, may_meet] : std::vector<Pair>{
           {at::ones({}), at::ones({}), true},
           {at::ones({}), at::ones({1}), false},
           {at::ones({0, 3}), at::ones({0, 3}), true},
           {at::ones({0, 3}), at::ones({3, 0}).t(), true},
           {at::ones({0, 3}), at::ones({3, 0}), false},
           {at::ones({0}), at::ones({0}), true},
           {at::ones({1, 6}), odd_strides, true},
           {at::ones({1, 6}), at::ones({6, 1}), false},
           {at::ones({1, 6}), at::ones({6}), false},
           {at::ones({6}), at::ones({12}).slice(0, 0, 12, 2), true},
       }) {
    SCOPED_TRACE(testing::PrintToString(one.sizes().vec()) + " and " +
                 testing::PrintToString(other.sizes().vec()));
    const auto results =
        harness::run_ranks(kWorld,
                           [&](ProcessGroup& group) {
                             const at::Tensor tensor = (group.rank() == 0 ? one : other).clone();
                             all_reduce(group, tensor);
                             EXPECT_TRUE(at::equal(tensor, at::full(tensor.sizes(), 2.0F)));
                             broadcast(group, tensor, 0);
                             all_gather_into_tensor(group, tensor);
                           },
                           {.transport = GetParam().transport});
    for (const auto& result : results) {
      EXPECT_EQ(result.error.has_value(), !may_meet) << (may_meet ? result.error->what() : "");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, LayoutsTest,
                         testing::Values(Memory{TransportKind::kAuto, false},
                                         Memory{TransportKind::kTcp, false},
                                         Memory{TransportKind::kAuto, true}),
                         [](const auto& test) {
                           return std::string(test.param.is_symmetric ? "symmetric"
                                              : test.param.transport == TransportKind::kTcp
                                                  ? "tcp"
                                                  : "auto");
                         });

}  // namespace
}  // namespace paceline
