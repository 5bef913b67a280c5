#include "paceline/training/tensor/collectives.h"

#include <chrono>
#include <memory>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "paceline/engine/collectives/group/object_collectives.h"
#include "paceline/training/tensor/shaped_messages.h"
#include "paceline/training/tensor/tensor_call.h"

#include "tests/harness/expect_error.h"
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
    scatter(group, received, gathered, 1);
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

TEST(TensorCollectives, take_a_group_or_a_pointer_to_it) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    const std::shared_ptr<ProcessGroup> pointer(&group, [](auto*) {});
    const at::Tensor tensor = at::ones({3});
    all_reduce(group, tensor);
    all_reduce(pointer, tensor);
    EXPECT_TRUE(at::equal(tensor, at::full({3}, 4.0F)));
    EXPECT_EQ(all_reduce_value(pointer, group.rank(), ReduceOp::kMax), 1);
    EXPECT_EQ(broadcast_object(pointer, group.rank() == 0 ? "here" : "", 0), "here");
    expect_error(ErrorCode::kInvalid, {"a null pointer was given as a group"},
                 [&] { all_reduce(std::shared_ptr<ProcessGroup>(), tensor); });
  });
}

TEST(TensorCollectives, a_call_ends_after_its_own_timeout) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    const at::Tensor tensor = at::ones({3});
    const auto doomed = group.split(0, group.rank());
    all_gather_into_tensor(doomed, tensor, {.timeout = std::chrono::minutes(1)});
    if (group.rank() == 0) {
      expect_error(ErrorCode::kTimeout, {"all_reduce"}, [&] {
        all_reduce(doomed, tensor, ReduceOp::kSum, {.timeout = std::chrono::milliseconds(50)});
      });
    }
    group.barrier();
  });
}

// The example of docs/model_parallelism.md.
TEST(TensorCollectives, roots_and_peers_are_ranks_of_the_group_that_is_called) {
  run_ranks_ok(4, [](ProcessGroup& world) {
    const auto half = world.split(world.rank() / 2, world.rank());  // 0 and 1, 2 and 3
    const at::Tensor tensor = at::full({3}, static_cast<float>(world.rank()));
    broadcast(*half, tensor, 0);
    EXPECT_EQ(tensor[0].item<float>(), world.rank() < 2 ? 0.0F : 2.0F);
    EXPECT_EQ(half->world_ranks()[0], world.rank() < 2 ? 0 : 2);
    if (world.rank() == 2) send(*half, at::full({1}, 7.0F), 1);
    const at::Tensor received = at::zeros({1});
    if (world.rank() == 3) {
      EXPECT_EQ(recv(*half, received, 0), 0);
    }
    EXPECT_EQ(received.item<float>(), world.rank() == 3 ? 7.0F : 0.0F);
    expect_error(ErrorCode::kInvalid, {"is not a rank of group"},
                 [&] { broadcast(*half, tensor, world.rank() < 2 ? 3 : 2); });
  });
}

TEST(TensorCollectives, messages_may_bring_their_shape) {
  const std::vector<at::Tensor> sent = {at::arange(24, at::kDouble).view({2, 3, 4}).transpose(0, 2),
                                        at::full({}, 7L), at::zeros({3, 0, 2}, at::kHalf),
                                        at::ones({200'001}, at::kBool)};
  run_ranks_ok(3, [&](ProcessGroup& group) {
    if (group.rank() > 0) {
      for (const at::Tensor& tensor : sent) send_with_shape(group, tensor, 0, 9);
      return;
    }
    for (const int peer : {2, kAnySource}) {
      for (const at::Tensor& tensor : sent) {
        const auto [received, source] = recv_with_shape(group, peer, 9);
        EXPECT_EQ(source, peer == 2 ? 2 : 1);
        EXPECT_EQ(received.scalar_type(), tensor.scalar_type());
        EXPECT_TRUE(received.is_contiguous() && at::equal(received, tensor));
      }
    }
  });
}

TEST(TensorCollectives, a_message_without_its_shape_is_refused_where_one_is_wanted) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    expect_error(ErrorCode::kInvalid, {"a tensor of 9 dimensions; 8 is the maximum"}, [&] {
      send_with_shape(group, at::zeros({1, 1, 1, 1, 1, 1, 1, 1, 1}), 1 - group.rank());
    });
    if (group.rank() == 1) {
      send(group, at::zeros({11}, at::kLong), 0, 3);
    } else {
      expect_error(
          ErrorCode::kInvalid,
          {"a tensor with its shape from rank 1, tag 3", "sent int64 x 11 without a shape"},
          [&] { recv_with_shape(group, 1, 3); });
    }
  });
}

// Several messages are under way at once: small ones, and one that the receiver must fetch.
// Receives start before or after the messages arrive.
TEST(TensorCollectives, tensors_of_unknown_shape_come_in_the_order_of_sending) {
  const std::vector<at::Tensor> sent = {at::arange(6).reshape({2, 3}), at::randn({300, 301}),
                                        at::scalar_tensor(2.5), at::empty({0, 4}, at::kHalf),
                                        at::arange(5, at::kByte)};
  run_ranks_ok(2, [&](ProcessGroup& group) {
    const int peer = 1 - group.rank();
    for (const bool asked_before : {true, false}) {
      std::vector<PendingTensor> receives;
      std::vector<WorkPtr> sends;
      const auto ask = [&] {
        for (std::size_t i = 0; i < sent.size(); ++i)
          receives.push_back(irecv_with_shape(group, i % 2 == 0 ? peer : kAnySource, 9));
      };
      if (asked_before) ask();
      group.barrier();
      for (const auto& tensor : sent) sends.push_back(isend_with_shape(group, tensor, peer, 9));
      if (!asked_before) ask();
      for (std::size_t i = 0; i < sent.size(); ++i) {
        const auto [received, source] = receives[i].wait();
        EXPECT_EQ(source, peer);
        EXPECT_EQ(received.scalar_type(), sent[i].scalar_type());
        EXPECT_TRUE(at::equal(received, sent[i])) << i;
      }
      for (const auto& work : sends) work->wait();
    }
  });
}

TEST(TensorCollectives, a_receive_of_known_shape_takes_a_message_that_brings_its_shape) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    const auto tensor = at::arange(6).reshape({2, 3});
    if (group.rank() == 0) {
      send_with_shape(group, tensor, 1);
    } else {
      const auto into = at::empty({2, 3}, at::kLong);
      recv(group, into, 0);
      EXPECT_TRUE(at::equal(into, tensor));
    }
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

// Every operation in its asynchronous form, all at the same time.
TEST(TensorCollectives, asynchronous_forms_fill_the_tensors_that_they_are_given) {
  run_ranks_ok(3, [](ProcessGroup& group) {
    const int rank = group.rank();
    const auto part_of = [](const at::Tensor& tensor, int of) {
      return tensor.slice(0, of * 2, of * 2 + 2);
    };
    const auto one = numbers(rank, {2, 5}), six = numbers(rank, {6, 5});
    const auto sum = numbers(0, {6, 5}) + numbers(1, {6, 5}) + numbers(2, {6, 5});
    const auto all = at::cat({numbers(0, {2, 5}), numbers(1, {2, 5}), numbers(2, {2, 5})});
    const auto summed = six.clone(), copied = six.clone(), at_root = six.clone();
    const auto gathered = at::empty({6, 5}), scattered = at::empty({2, 5}),
               reduced = at::empty({2, 5}), exchanged = at::empty({6, 5}),
               message = at::empty({2, 5});
    const at::Tensor roots = rank == 1 ? at::empty({6, 5}) : at::Tensor();
    const std::vector<WorkPtr> works = {
        all_reduce(group, summed, ReduceOp::kSum, {.async_op = true}),
        broadcast(group, copied, 2, {.async_op = true}),
        reduce(group, at_root, 1, ReduceOp::kSum, {.async_op = true}),
        all_gather_into_tensor(group, gathered, one, {.async_op = true}),
        gather(group, roots, one, 1, {.async_op = true}),
        scatter(group, scattered, rank == 0 ? six.chunk(3) : std::vector<at::Tensor>(), 0,
                {.async_op = true}),
        reduce_scatter(group, reduced, six, ReduceOp::kSum, {.async_op = true}),
        all_to_all_single(group, exchanged, six, {.async_op = true}),
        isend(group, one, (rank + 1) % 3, 7),
        irecv(group, message, (rank + 2) % 3, 7)};
    for (const auto& work : works) work->wait();
    EXPECT_TRUE(at::equal(summed, sum));
    EXPECT_TRUE(at::equal(copied, numbers(2, {6, 5})));
    EXPECT_TRUE(at::equal(at_root, rank == 1 ? sum : six));
    EXPECT_TRUE(at::equal(gathered, all));
    if (rank == 1) {
      EXPECT_TRUE(at::equal(roots, all));
    }
    EXPECT_TRUE(at::equal(scattered, part_of(numbers(0, {6, 5}), rank)));
    EXPECT_TRUE(at::equal(reduced, part_of(sum, rank)));
    for (int from = 0; from < 3; ++from) {
      EXPECT_TRUE(at::equal(part_of(exchanged, from), part_of(numbers(from, {6, 5}), rank)));
    }
    EXPECT_TRUE(at::equal(message, numbers((rank + 2) % 3, {2, 5})));
    EXPECT_EQ(works.back()->source_rank(), (rank + 2) % 3);
  });
}

TEST(TensorCollectives, unequal_numbers_of_rows) {
  run_ranks_ok(3, [](ProcessGroup& group) {
    const int rank = group.rank();
    const std::vector<std::int64_t> rows = {2, 0, 3};
    const auto mine = numbers(rank, {rows[static_cast<std::size_t>(rank)], 4});
    const auto all = at::cat({numbers(0, {2, 4}), numbers(2, {3, 4})});
    const auto into = at::empty({5, 4});
    const WorkPtr gathering = all_gather_v(group, into, mine, rows, {.async_op = true});
    EXPECT_TRUE(at::equal(all_gather_v(group, mine, rows), all));
    gathering->wait();
    EXPECT_TRUE(at::equal(into, all));

    const auto whole = numbers(rank, {5, 4});
    const auto sum = numbers(0, {5, 4}) + numbers(1, {5, 4}) + numbers(2, {5, 4});
    const auto part = sum.split_with_sizes(rows)[static_cast<std::size_t>(rank)];
    const auto reduced = at::empty_like(part);
    const WorkPtr reducing =
        reduce_scatter_v(group, reduced, whole, rows, ReduceOp::kSum, {.async_op = true});
    EXPECT_TRUE(at::equal(reduce_scatter_v(group, whole, rows), part));
    reducing->wait();
    EXPECT_TRUE(at::equal(reduced, part));

    // Every rank sends rows[r] rows to rank r.
    const std::int64_t own = rows[static_cast<std::size_t>(rank)];
    const auto exchanged = at::empty({3 * own, 4});
    const WorkPtr exchanging =
        all_to_all_single(group, exchanged, whole, {own, own, own}, rows, {.async_op = true});
    const auto again = all_to_all_single(group, whole, {own, own, own}, rows);
    exchanging->wait();
    EXPECT_TRUE(at::equal(exchanged, again));
    for (int from = 0; from < 3; ++from) {
      EXPECT_TRUE(
          at::equal(again.slice(0, from * own, (from + 1) * own),
                    numbers(from, {5, 4}).split_with_sizes(rows)[static_cast<std::size_t>(rank)]));
    }
    EXPECT_THROW(all_gather_v(group, mine, {1}), Error);
  });
}

TEST(TensorCollectives, many_tensors_in_one_call) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    const int rank = group.rank();
    const auto list = [&](int from) {
      return std::vector<at::Tensor>{numbers(from, {4, 3}), numbers(from, {2}),
                                     numbers(from, {2, 8}).t().contiguous().t()};
    };
    const auto expect_equal = [](const std::vector<at::Tensor>& some,
                                 const std::vector<at::Tensor>& expected) {
      for (std::size_t i = 0; i < expected.size(); ++i)
        EXPECT_TRUE(at::equal(some[i], expected[i])) << i;
    };
    auto sum = list(0);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += list(1)[i];
    const auto summed = list(rank), later = list(rank), copied = list(rank),
               copied_later = list(rank);
    const std::vector<WorkPtr> works = {
        all_reduce_coalesced(group, later, ReduceOp::kSum, {.async_op = true}),
        broadcast_coalesced(group, copied_later, 1, {.async_op = true})};
    all_reduce_coalesced(group, summed);
    broadcast_coalesced(group, copied, 0);
    for (const auto& work : works) work->wait();
    expect_equal(summed, sum);
    expect_equal(later, sum);
    expect_equal(copied, list(0));
    expect_equal(copied_later, list(1));
    all_reduce_coalesced(group, {});  // an empty list is a valid call

    std::vector<at::Tensor> all, parts, all_later, parts_later, expected_all, expected_parts;
    for (std::size_t i = 0; i < sum.size(); ++i) {
      expected_all.push_back(at::cat({list(0)[i], list(1)[i]}));
      expected_parts.push_back(sum[i].chunk(2)[static_cast<std::size_t>(rank)]);
      for (auto* into : {&all, &all_later}) into->push_back(at::empty_like(expected_all.back()));
      for (auto* into : {&parts, &parts_later})
        into->push_back(at::empty_like(expected_parts.back()));
    }
    all_gather_coalesced(group, all, list(rank));
    reduce_scatter_coalesced(group, parts, list(rank));
    expect_equal(all, expected_all);
    expect_equal(parts, expected_parts);
    std::vector<at::Tensor> inputs;
    for (const auto& tensor : list(rank)) inputs.push_back(tensor.contiguous());
    all_gather_coalesced(group, all_later, inputs, {.async_op = true})->wait();
    reduce_scatter_coalesced(group, parts_later, inputs, ReduceOp::kSum, {.async_op = true})
        ->wait();
    expect_equal(all_later, expected_all);
    expect_equal(parts_later, expected_parts);
  });
}

TEST(TensorCollectives, blocks_need_contiguous_tensors_only_when_asynchronous) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    const auto turned = numbers(group.rank(), {3, 4}).t();
    EXPECT_TRUE(at::equal(all_gather_into_tensor(group, turned),
                          at::cat({numbers(0, {3, 4}).t(), numbers(1, {3, 4}).t()})));
    try {
      all_gather_into_tensor(group, at::empty({8, 3}), turned, {.async_op = true});
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalid);
      EXPECT_NE(std::string(error.what()).find("contiguous"), std::string::npos) << error.what();
    }
    EXPECT_THROW(all_reduce(group, at::Tensor()), Error);
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
