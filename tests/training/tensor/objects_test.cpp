#include <chrono>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "paceline/engine/collectives/group/engine_group.h"
#include "paceline/training/tensor/collectives.h"
#include "paceline/training/tensor/tensor_view.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using harness::run_ranks;
using harness::run_ranks_ok;
using namespace std::chrono_literals;

// Texts of different lengths on each rank; rank 1's is empty.
std::string text_of(int rank) {
  if (rank == 1) return "";
  return std::string(static_cast<std::size_t>(rank) * 5000 + 3, static_cast<char>('a' + rank));
}

TEST(Objects, strings_of_any_length_reach_every_rank_or_root) {
  for (int world = 1; world <= 8; ++world) {
    run_ranks_ok(world, [world](ProcessGroup& group) {
      const auto mine = text_of(group.rank());
      const auto all = all_gather_object(group, mine);
      ASSERT_EQ(all.size(), static_cast<std::size_t>(world));
      for (int rank = 0; rank < world; ++rank)
        EXPECT_EQ(all[static_cast<std::size_t>(rank)], text_of(rank));
      for (int root = 0; root < world; ++root) {
        EXPECT_EQ(broadcast_object(group, mine, root), text_of(root));
        EXPECT_EQ(gather_objects(group, mine, root),
                  group.rank() == root ? all : std::vector<std::string>());
      }
    });
  }
}

TEST(Objects, json_is_a_string) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    const std::string settings = R"({"lr": 0.1, "name": "µ\n"})";
    EXPECT_EQ(broadcast_object(group, group.rank() == 0 ? settings : "", 0), settings);
  });
}

std::vector<at::Tensor> tensors_of(int rank) {
  std::vector<at::Tensor> tensors = {
      at::full({rank + 1, 2}, rank, at::kFloat), at::scalar_tensor(rank, at::kLong),
      at::ones({0, 3}, at::kBFloat16), at::arange(6, at::kDouble).view({2, 3}).t(),
      at::full({3}, rank % 2 == 0, at::kBool)};
  tensors.resize(static_cast<std::size_t>(rank) % 6);
  return tensors;
}

void expect_equal(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].scalar_type(), wanted[i].scalar_type());
    EXPECT_TRUE(at::equal(got[i], wanted[i])) << i;
  }
}

TEST(Objects, lists_of_tensors_keep_their_shapes_and_types) {
  for (const int world : {1, 2, 6}) {
    run_ranks_ok(world, [world](ProcessGroup& group) {
      const auto mine = tensors_of(group.rank());
      const auto all = all_gather_object(group, mine);
      for (int rank = 0; rank < world; ++rank)
        expect_equal(all[static_cast<std::size_t>(rank)], tensors_of(rank));
      const int root = world - 1;
      expect_equal(broadcast_object(group, mine, root), tensors_of(root));
      const auto at_root = gather_objects(group, mine, root);
      EXPECT_EQ(at_root.size(), group.rank() == root ? all.size() : 0);
      for (std::size_t rank = 0; rank < at_root.size(); ++rank)
        expect_equal(at_root[rank], all[rank]);
    });
  }
}

TEST(Objects, too_long_an_object_is_an_error_on_every_rank_and_the_group_goes_on) {
  run_ranks_ok(3, [](ProcessGroup& group) {
    // Only rank 0 has a limit, and rank 2's text exceeds it.
    const ObjectOptions options{.max_bytes = group.rank() == 0 ? 5003U : 1U << 20U};
    const auto mine = text_of(group.rank());
    expect_error(ErrorCode::kInvalid, {"all_gather_object", "rank 2 has 10003 bytes", "5003"},
                 [&] { all_gather_object(group, mine, options); });
    expect_error(ErrorCode::kInvalid, {"gather_objects", "rank 2 has 10003 bytes", "5003"},
                 [&] { gather_objects(group, mine, 1, options); });
    expect_error(ErrorCode::kInvalid, {"broadcast_object", "rank 2 has 10003 bytes", "100"}, [&] {
      broadcast_object(group, mine, 2, {.max_bytes = group.rank() == 2 ? 100U : 1U << 20U});
    });
    EXPECT_EQ(all_gather_object(group, mine).back(), mine.empty() ? text_of(2) : text_of(2));
  });
}

TEST(Objects, a_missing_rank_is_named_at_the_deadline) {
  const auto results = run_ranks(2, [](ProcessGroup& group) {
    if (group.rank() == 0) {
      all_gather_object(group, "here", {.timeout = 200ms});
    } else {
      int never = 0;
      group.recv(std::span(&never, 1), 0);
    }
  });
  ASSERT_TRUE(results[0].error);
  EXPECT_EQ(results[0].error->code(), ErrorCode::kTimeout);
  EXPECT_NE(std::string(results[0].error->what()).find("rank 1"), std::string::npos);
  EXPECT_TRUE(results[1].error);
}

TEST(Objects, bytes_that_are_no_tensors_are_refused) {
  const std::string good = to_bytes({at::ones({2, 3}), at::zeros({4}, at::kLong)});
  expect_equal(tensors_from_bytes(good), {at::ones({2, 3}), at::zeros({4}, at::kLong)});
  for (std::size_t length = 1; length < good.size(); ++length) {
    if (length == 2 * 8 + 2 * 8 + 24) continue;  // valid: the first tensor alone
    EXPECT_THROW(tensors_from_bytes(good.substr(0, length)), Error) << length;
  }
  const auto with = [&](std::size_t place, std::int64_t number) {
    std::string bytes = good;
    bytes.replace(place * 8, 8, reinterpret_cast<const char*>(&number), 8);
    return bytes;
  };
  EXPECT_THROW(tensors_from_bytes(with(0, 77)), Error);  // unknown type
  EXPECT_THROW(tensors_from_bytes(with(1, -1)), Error);  // negative number of dimensions
  EXPECT_THROW(tensors_from_bytes(with(1, 1000)), Error);
  EXPECT_THROW(tensors_from_bytes(with(2, -2)), Error);  // negative size
  // The size claims more elements than there are bytes.
  EXPECT_THROW(tensors_from_bytes(with(2, std::int64_t{1} << 62)), Error);
  EXPECT_THROW(to_bytes({at::Tensor()}), Error);
  EXPECT_THROW(to_bytes({at::zeros({1}, at::kComplexFloat)}), Error);
}

// ---- batched messages

TEST(BatchedMessages, large_ones_cross_in_a_ring_and_between_all_ranks) {
  constexpr std::int64_t kCount = 400'000;
  for (const int world : {2, 3, 4, 8}) {
    run_ranks_ok(world, [world](ProcessGroup& group) {
      const at::Tensor mine = at::full({kCount}, group.rank(), at::kFloat);
      std::vector<P2POp> messages;
      std::vector<at::Tensor> theirs;
      for (int peer = 0; peer < world; ++peer) {
        if (peer == group.rank()) continue;
        theirs.push_back(at::empty({kCount}));
        messages.push_back({Op::kSend, mine, peer, 3});
        messages.push_back({Op::kReceive, theirs.back(), peer, 3});
      }
      const auto works = batch_isend_irecv(group, messages);
      ASSERT_EQ(works.size(), messages.size());
      for (const auto& work : works) work->wait();
      std::size_t next = 0;
      for (int peer = 0; peer < world; ++peer) {
        if (peer == group.rank()) continue;
        EXPECT_TRUE(at::equal(theirs[next++], at::full({kCount}, peer, at::kFloat)));
        EXPECT_EQ(works[2 * next - 1]->source_rank(), peer);  // messages stay in order
      }
    });
  }
}

TEST(BatchedMessages, take_buffers_too_and_messages_of_one_pair_keep_their_order) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    const int other = 1 - group.rank();
    std::vector<int> mine = {10 + group.rank(), 20 + group.rank()}, theirs(2);
    const std::span<int> out(mine), in(theirs);
    const Call calls[] = {{.op = Op::kSend, .input = out.first(1), .peer = other},
                          {.op = Op::kSend, .input = out.last(1), .peer = other},
                          {.op = Op::kReceive, .output = in.first(1), .peer = other},
                          {.op = Op::kReceive, .output = in.last(1), .peer = other}};
    for (const auto& work : engine(group).batch_isend_irecv(calls)) work->wait();
    EXPECT_EQ(theirs, (std::vector<int>{10 + other, 20 + other}));
    EXPECT_TRUE(engine(group).batch_isend_irecv({}).empty());
  });
}

TEST(BatchedMessages, a_wrong_message_is_an_error_before_any_has_started) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    const int other = 1 - group.rank();
    const at::Tensor right = at::full({1}, group.rank(), at::kFloat), theirs = at::zeros({1});
    const P2POp good{Op::kSend, right + 50, other};
    expect_error(ErrorCode::kInvalid, {"peer 7"}, [&] {
      batch_isend_irecv(group, {good, {Op::kReceive, theirs, 7}});
    });
    expect_error(ErrorCode::kInvalid, {"not all_reduce"}, [&] {
      batch_isend_irecv(group, {good, {Op::kAllReduce, right, other}});
    });
    for (const auto& work :
         batch_isend_irecv(group, {{Op::kSend, right, other}, {Op::kReceive, theirs, other}}))
      work->wait();
    EXPECT_EQ(theirs.item<int>(), other) << "the refused messages were not sent";
  });
}

TEST(BatchedMessages, a_peer_that_leaves_ends_what_waits_for_it) {
  const auto results = run_ranks(3, [](ProcessGroup& group) {
    if (group.rank() == 2) return;
    const int other = 1 - group.rank();
    const at::Tensor mine = at::ones({100'000}), theirs = at::empty({100'000}),
                     never = at::empty({4});
    const auto works = batch_isend_irecv(
        group, {{Op::kSend, mine, other}, {Op::kReceive, theirs, other}, {Op::kReceive, never, 2}});
    works[2]->wait();
  });
  EXPECT_TRUE(results[0].error);
  EXPECT_TRUE(results[1].error);
}

}  // namespace
}  // namespace paceline
