// Promises of Paceline's own backend that other backends do not make: bitwise equal results
// everywhere.

#include <cstring>
#include <mutex>
#include <set>

#include <gtest/gtest.h>

#include "paceline/engine/collectives/op_traits.h"
#include "paceline/engine/core/dtype_traits.h"

#include "tests/engine/collectives/quick_random.h"
#include "tests/engine/collectives/sample_values.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using harness::run_ranks_ok;

TEST(Determinism, staged_and_symmetric_memory_agree_in_every_type_and_operation) {
  const auto body = [](ProcessGroup& group) {
    const std::size_t count = 40'000;
    const auto shared = group.allocate_symmetric(count * 8);
    for (const Dtype dtype : kAllDtypes) {
      for (int op = 0; op <= static_cast<int>(ReduceOp::kBitXor); ++op) {
        const auto reduce_op = static_cast<ReduceOp>(op);
        if (!is_defined(reduce_op, dtype)) continue;
        QuickRandom random(static_cast<std::uint64_t>(group.rank()) * 100 +
                           static_cast<unsigned>(op));
        std::vector<std::byte> plain(count * size_of(dtype));
        for (auto& byte : plain) {
          // Every byte is 0x38 to 0x3f: a moderate positive number in every floating-point type.
          byte = dtype == Dtype::kBool ? std::byte(random() & 1) : std::byte(0x38 | (random() & 7));
        }
        std::memcpy(shared.data(), plain.data(), plain.size());
        group.all_reduce(Buffer(plain.data(), count, dtype), reduce_op);
        group.all_reduce(Buffer(shared.data(), count, dtype), reduce_op);
        ASSERT_EQ(std::memcmp(plain.data(), shared.data(), plain.size()), 0)
            << name_of(dtype) << " " << name_of(reduce_op);
      }
    }
  };
  for (const auto transport :
       {TransportKind::kLoopback, TransportKind::kShm, TransportKind::kTcp}) {
    for (const int world : {2, 3, 5}) run_ranks_ok(world, body, {.transport = transport});
  }
}

// kernels/reduce.h promises this for all transports, buffers and chunk sizes.
TEST(Determinism, the_same_bits_over_every_transport_and_on_every_rank) {
  for (const int world : {2, 3, 4, 5}) {
    for (const std::size_t count : {100, 2000, 5000, 300'001}) {
      std::set<std::vector<float>> results;
      std::mutex mutex;
      for (const auto transport :
           {TransportKind::kLoopback, TransportKind::kShm, TransportKind::kTcp}) {
        run_ranks_ok(world,
                     [&](ProcessGroup& group) {
                       std::vector<float> data = random_values(group.rank(), count);
                       const auto shared = group.allocate_symmetric(count * sizeof(float));
                       std::memcpy(shared.data(), data.data(), count * sizeof(float));
                       group.all_reduce(std::span(data));
                       group.all_reduce(shared.as<float>());
                       const auto view = shared.as<float>();
                       const std::lock_guard lock(mutex);
                       results.insert(data);
                       results.insert(std::vector<float>(
                           view.begin(), view.begin() + static_cast<std::ptrdiff_t>(count)));
                     },
                     {.transport = transport});
      }
      EXPECT_EQ(results.size(), 1u) << world << " ranks, " << count << " elements";
    }
  }
}

}  // namespace
}  // namespace paceline
