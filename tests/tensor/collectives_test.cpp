#include "paceline/tensor/collectives.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using harness::run_ranks_ok;

at::Tensor numbers(int rank, at::IntArrayRef sizes) {
  std::int64_t count = 1;
  for (const auto size : sizes) count *= size;
  return (at::arange(count, at::kFloat) + static_cast<float>(rank) * 100.0f).reshape(sizes);
}

TEST(TensorCollectives, contiguous_channels_last_and_strided_tensors) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    const auto expected = numbers(0, {2, 3, 4, 4}) + numbers(1, {2, 3, 4, 4});
    const auto plain = numbers(group.rank(), {2, 3, 4, 4});
    const auto channels_last = plain.contiguous(at::MemoryFormat::ChannelsLast);
    const auto wide = at::zeros({2, 3, 4, 8});
    const auto strided = wide.slice(3, 0, 8, 2);
    strided.copy_(plain);
    for (const auto& tensor :
         {plain.clone(), channels_last, strided, plain.transpose(0, 2).clone().transpose(0, 2)}) {
      all_reduce(group, tensor);
      EXPECT_TRUE(at::equal(tensor, expected));
    }
    EXPECT_EQ(wide.slice(3, 1, 8, 2).abs().sum().item<float>(), 0.0f)
        << "gaps of a strided tensor stay untouched";
  });
}

TEST(TensorCollectives, gathers_scatters_and_exchanges) {
  run_ranks_ok(3, [](ProcessGroup& group) {
    const auto mine = numbers(group.rank(), {2, 5});
    const auto all = all_gather(group, mine);
    ASSERT_EQ(all.size(), 3u);
    for (int rank = 0; rank < 3; ++rank)
      EXPECT_TRUE(at::equal(all[static_cast<std::size_t>(rank)], numbers(rank, {2, 5})));
    EXPECT_TRUE(at::equal(all_gather_into_tensor(group, mine), at::cat(all)));
    const auto gathered = gather(group, mine, 1);
    EXPECT_EQ(gathered.size(), group.rank() == 1 ? 3u : 0u);
    const auto received = at::empty({2, 5});
    scatter(group, gathered, received, 1);
    EXPECT_TRUE(at::equal(received, mine));
    const auto parts = numbers(group.rank(), {6, 2});
    const auto total = numbers(0, {6, 2}) + numbers(1, {6, 2}) + numbers(2, {6, 2});
    EXPECT_TRUE(at::equal(reduce_scatter(group, parts),
                          total.slice(0, group.rank() * 2, group.rank() * 2 + 2)));
    const auto exchanged = all_to_all_single(group, parts);
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_TRUE(
          at::equal(exchanged.slice(0, rank * 2, rank * 2 + 2),
                    numbers(rank, {6, 2}).slice(0, group.rank() * 2, group.rank() * 2 + 2)));
    }
    EXPECT_THROW(reduce_scatter(group, at::zeros({4, 2})), Error);
  });
}

TEST(TensorCollectives, broadcast_reduce_send_and_recv) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    auto tensor = numbers(group.rank(), {4});
    broadcast(group, tensor, 1);
    EXPECT_TRUE(at::equal(tensor, numbers(1, {4})));
    reduce(group, tensor, 0);
    EXPECT_TRUE(at::equal(tensor, group.rank() == 0 ? numbers(1, {4}) * 2 : numbers(1, {4})));
    const auto message = at::arange(12).reshape({3, 4}).t();
    if (group.rank() == 0) {
      send(group, message, 1, 5);
    } else {
      const auto into = at::empty_like(message);
      EXPECT_EQ(recv(group, into, kAnySource, 5), 0);
      EXPECT_TRUE(at::equal(into, message));
    }
  });
}

TEST(TensorCollectives, symmetric_tensors_outlive_their_group) {
  at::Tensor kept;
  run_ranks_ok(2, [&](ProcessGroup& group) {
    const auto tensor = empty_symmetric(group, {1000, 100});
    EXPECT_EQ(tensor.sum().item<float>(), 0.0f);
    tensor.fill_(1.0f);
    all_reduce(group, tensor, ReduceOp::kSum);
    EXPECT_EQ(tensor.min().item<float>(), 2.0f);
    if (group.rank() == 0) kept = tensor;
  });
  EXPECT_EQ(kept.max().item<float>(), 2.0f);
}

TEST(TensorCollectives, half_precision_is_summed_in_float32) {
  run_ranks_ok(3, [](ProcessGroup& group) {
    for (const auto type : {at::kHalf, at::kBFloat16}) {
      at::manual_seed(group.rank());
      const auto mine = at::randn({5000}, at::kFloat).to(type);
      const auto all = all_gather(group, mine);
      auto sum = mine.clone();
      all_reduce(group, sum);
      const auto expected =
          ((all[0].to(at::kFloat) + all[1].to(at::kFloat)) + all[2].to(at::kFloat)).to(type);
      EXPECT_TRUE(at::equal(sum, expected));
    }
  });
}

TEST(TensorCollectives, an_unsupported_type_is_named) {
  run_ranks_ok(1, [](ProcessGroup& group) {
    try {
      all_reduce(group, at::zeros({2}, at::kComplexFloat));
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_NE(std::string(error.what()).find("Complex"), std::string::npos) << error.what();
    }
  });
}

}  // namespace
}  // namespace paceline
