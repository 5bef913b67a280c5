// Ranks that are not members of a new group: every call on it is at once a typed error that names
// them and the members. The members do not notice.

#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/harness/says.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using harness::run_ranks_ok;
using harness::Says;
using testing::HasSubstr;

struct Ask {
  const char* name;
  std::function<void(ProcessGroup&)> body;
};

// Every call that a group has.
std::vector<Ask> everything() {
  static std::vector<float> a(8), b(8);
  static const std::vector<std::size_t> counts = {4, 4};
  const auto in = std::span<const float>(a);
  const auto out = std::span<float>(b);
  const ConstBuffer input(in);
  const Buffer output(out);
  const std::vector<Buffer> outputs(2, output);
  const std::vector<ConstBuffer> inputs(2, input);
  return {
      {"all_reduce", [=](ProcessGroup& g) { g.all_reduce(output); }},
      {"all_reduce",
       [=](ProcessGroup& g) { g.all_reduce(output, ReduceOp::kSum, {.async_op = true}); }},
      {"broadcast", [=](ProcessGroup& g) { g.broadcast(output, 0); }},
      {"reduce", [=](ProcessGroup& g) { g.reduce(output, 0); }},
      {"all_gather", [=](ProcessGroup& g) { g.all_gather(output, input); }},
      {"gather", [=](ProcessGroup& g) { g.gather(output, input, 0); }},
      {"scatter", [=](ProcessGroup& g) { g.scatter(output, input, 0); }},
      {"reduce_scatter", [=](ProcessGroup& g) { g.reduce_scatter(output, input); }},
      {"all_to_all", [=](ProcessGroup& g) { g.all_to_all(output, input); }},
      {"all_gather_v", [=](ProcessGroup& g) { g.all_gather_v(output, input, counts); }},
      {"reduce_scatter_v", [=](ProcessGroup& g) { g.reduce_scatter_v(output, input, counts); }},
      {"all_to_all_v", [=](ProcessGroup& g) { g.all_to_all_v(output, input, counts, counts); }},
      {"all_reduce", [=](ProcessGroup& g) { g.all_reduce_coalesced(outputs); }},
      {"broadcast", [=](ProcessGroup& g) { g.broadcast_coalesced(outputs, 0); }},
      {"all_gather", [=](ProcessGroup& g) { g.all_gather_coalesced(outputs, inputs); }},
      {"barrier", [](ProcessGroup& g) { g.barrier(); }},
      {"barrier", [](ProcessGroup& g) { g.barrier({.async_op = true}); }},
      {"barrier", [](ProcessGroup& g) { g.monitored_barrier(std::chrono::seconds(1)); }},
      {"send", [=](ProcessGroup& g) { g.send(input, 0); }},
      {"recv", [=](ProcessGroup& g) { g.recv(output, 0); }},
      {"recv", [=](ProcessGroup& g) { g.irecv(output, kAnySource); }},
      {"allocate_symmetric", [](ProcessGroup& g) { g.allocate_symmetric(64); }},
      {"is_symmetric", [=](ProcessGroup& g) { g.is_symmetric(input); }},
      {"new_group", [](ProcessGroup& g) { g.new_group({0}); }},
      {"split", [](ProcessGroup& g) { g.split(0, 0); }},
      {"abort", [](ProcessGroup& g) { g.abort("no reason"); }},
      {"backend", [](ProcessGroup& g) { g.backend(); }},
      {"transport", [](ProcessGroup& g) { g.transport(); }},
      {"hosts", [](ProcessGroup& g) { g.hosts(); }},
      {"supports", [](ProcessGroup& g) { g.supports(Op::kAllReduce, Dtype::kFloat32); }},
      {"explain", [](ProcessGroup& g) { g.explain(Op::kAllReduce, Dtype::kFloat32, 1); }},
  };
}

void expect_refusals(ProcessGroup& group, const std::string& rank, const std::string& members) {
  EXPECT_FALSE(group.is_member());
  EXPECT_EQ(group.rank(), -1);
  for (const Ask& ask : everything()) {
    SCOPED_TRACE(ask.name);
    try {
      ask.body(group);
      ADD_FAILURE() << "was not refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalid);
      EXPECT_THAT(error.what(), HasSubstr(rank + ": " + ask.name));
      EXPECT_THAT(error.what(), Says("group.not_a_member", group.name()));
      EXPECT_THAT(error.what(), HasSubstr(members));
    }
  }
}

TEST(Outsiders, are_refused_by_name_whatever_they_call) {
  run_ranks_ok(4, [](ProcessGroup& group) {
    const auto part = group.new_group({3, 1});
    EXPECT_EQ(part->world_ranks(), (std::vector<int>{3, 1}));
    EXPECT_EQ(part->world_size(), 2);
    if (part->is_member()) {
      EXPECT_EQ(all_reduce_value(*part, 1), 2);
      EXPECT_EQ(part->rank(), group.rank() == 3 ? 0 : 1);
    } else {
      expect_refusals(*part, "rank " + std::to_string(group.rank()), "ranks 3, 1 of the world");
    }
    EXPECT_EQ(all_reduce_value(group, 1), 4);  // the parent group still works
  });
}

TEST(Outsiders, by_a_negative_color_are_told_so) {
  run_ranks_ok(3, [](ProcessGroup& group) {
    const auto part = group.split(group.rank() == 1 ? -1 : 0, 0);
    if (part->is_member()) {
      EXPECT_EQ(all_reduce_value(*part, 1), 2);
    } else {
      EXPECT_EQ(group.rank(), 1);
      EXPECT_EQ(part->world_size(), 0);
      expect_refusals(*part, "rank 1", "negative color");
    }
    EXPECT_EQ(all_reduce_value(group, 1), 3);
  });
}

// If a group was made from a subgroup, the error names ranks by their numbers in the world.
TEST(Outsiders, of_a_group_in_a_group_are_named_by_the_world) {
  run_ranks_ok(4, [](ProcessGroup& group) {
    const auto upper = group.new_group({2, 3});
    if (!upper->is_member()) return;
    const auto last = upper->new_group({1});
    if (group.rank() == 3) {
      EXPECT_EQ(all_reduce_value(*last, 7), 7);
    } else {
      expect_refusals(*last, "rank 2", "ranks 3 of the world");
    }
  });
}

}  // namespace
}  // namespace paceline
