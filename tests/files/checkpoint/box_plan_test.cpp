#include "paceline/files/checkpoint/box_plan.h"

#include <numeric>
#include <random>

#include <gmock/gmock.h>

#include "paceline/engine/core/dtype_traits.h"

#include "tests/files/checkpoint/error_of.h"
#include "tests/harness/random_seed.h"
#include "tests/harness/says.h"

namespace paceline {
namespace {

using harness::Says;
using testing::error_of;
using ::testing::HasSubstr;

std::uint64_t bytes_of(const BoxPlan& plan, int rank) {
  std::uint64_t bytes = 0;
  for (const BoxToWrite& one : plan.of_rank[static_cast<std::size_t>(rank)])
    bytes +=
        static_cast<std::uint64_t>(num_elements(one.box)) * size_of(plan.tensors[one.tensor].dtype);
  return bytes;
}

HeldBox whole(const std::string& name, const std::vector<std::int64_t>& shape) {
  return {name, Dtype::kFloat32, shape, whole_box(shape)};
}

TEST(BoxPlan, replicas_write_equal_shares) {
  const std::vector<HeldBox> held = {whole("a", {1000, 30}), whole("b", {7}), whole("c", {}),
                                     whole("d", {0, 3}), whole("e", {300, 4, 5})};
  for (const std::size_t world : {1, 2, 3, 4, 8}) {
    const BoxPlan plan = plan_boxes(std::vector(world, held), std::vector<bool>(world, true));
    const std::uint64_t all = 4 * (30000 + 7 + 1 + 6000);
    for (int rank = 0; rank < static_cast<int>(world); ++rank)
      EXPECT_NEAR(static_cast<double>(bytes_of(plan, rank)), static_cast<double>(all / world), 120);
    EXPECT_EQ(plan.num_files, world);
    EXPECT_EQ(plan.tensors.size(), held.size());
  }
}

TEST(BoxPlan, what_one_rank_has_alone_is_its_own) {
  HeldBox upper = whole("w", {10, 4}), lower = upper;
  upper.box.sizes[0] = 6;
  lower.box = {{6, 0}, {4, 4}};
  const BoxPlan plan = plan_boxes({{upper}, {lower}, {upper}, {lower}}, {true, true, true, true});
  for (const int rank : {0, 2}) EXPECT_EQ(bytes_of(plan, rank), 48U);
  for (const int rank : {1, 3}) EXPECT_EQ(bytes_of(plan, rank), 32U);
}

TEST(BoxPlan, ranks_that_cannot_write_do_only_what_no_other_one_has) {
  const BoxPlan plan = plan_boxes({{whole("a", {64})}, {whole("a", {64}), whole("b", {5})}, {}},
                                  {true, false, true});
  EXPECT_EQ(bytes_of(plan, 0), 256U);
  EXPECT_EQ(bytes_of(plan, 1), 20U);
  EXPECT_EQ(plan.num_files, 2U);
}

// Like two pipeline stages that both have the embedding, each with an optimizer that divides it
// among a different number of ranks.
TEST(BoxPlan, elements_held_in_several_boxes_are_written_once) {
  std::mt19937 random(harness::random_seed());
  for (int round = 0; round < 300; ++round) {
    const std::vector<std::int64_t> shape = {1 + static_cast<int>(random() % 9),
                                             1 + static_cast<int>(random() % 9)};
    const std::int64_t all = num_elements(shape);
    std::vector<std::vector<HeldBox>> held;
    for (int stage = 0; stage < 2; ++stage) {
      const std::int64_t ranks = 1 + static_cast<int>(random() % 4);
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        auto& list = held.emplace_back();
        const std::int64_t begin = all * rank / ranks, end = all * (rank + 1) / ranks;
        for (const Box& box : boxes_of_run(shape, begin, end - begin))
          list.push_back({"w", Dtype::kInt16, shape, box});
      }
    }
    // plan_boxes() would throw if an element were in no box or in two.
    const BoxPlan plan = plan_boxes(held, std::vector<bool>(held.size(), true));
    for (std::size_t rank = 0; rank < held.size(); ++rank) {
      for (const BoxToWrite& one : plan.of_rank[rank])
        EXPECT_EQ(common_part(one.box, held[rank][one.index].box), one.box);
    }
  }
}

// A rank that reads some columns finds them in one box.
TEST(BoxPlan, large_tensors_are_cut_into_columns) {
  const BoxPlan plan = plan_boxes({{whole("w", {1024, 512}), whole("small", {8, 8})}}, {true});
  EXPECT_EQ(plan.tensors[0].boxes.size(), 1U);
  ASSERT_EQ(plan.tensors[1].boxes.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(plan.tensors[1].boxes[i].box,
              (Box{{0, 128 * static_cast<std::int64_t>(i)}, {1024, 128}}));
  }
}

TEST(BoxPlan, ranks_that_disagree_or_leave_something_out_are_an_error) {
  HeldBox other = whole("a", {4});
  other.dtype = Dtype::kBfloat16;
  EXPECT_THAT(error_of([&] {
                plan_boxes({{whole("a", {4})}, {other}}, {true, true});
              }).what(),
              Says("checkpoint.types_differ", "a", "float32 [4]", 0, "bfloat16 [4]", 1));
  HeldBox part = whole("a", {4});
  part.box.sizes[0] = 3;
  EXPECT_THAT(error_of([&] { plan_boxes({{part}}, {true}); }).what(),
              Says("manifest.box_missing", 1, 4));
  HeldBox square = whole("a", {4});
  square.box = whole_box({2, 2});
  EXPECT_THAT(error_of([&] { plan_boxes({{square}}, {true}); }).what(),
              Says("checkpoint.dimensions_of_box", "[0:2, 0:2]", "a", 0, 1));
}

// Memory is only allocated for as many entries as the text can hold.
TEST(BoxPlan, a_list_that_was_cut_or_counts_too_much_is_an_error_and_takes_no_memory) {
  const std::string whole_list = encode({whole("a", {2, 3}), whole("b", {})});
  for (std::size_t length = 0; length < whole_list.size(); ++length) {
    const auto error = error_of([&] { decode_held(whole_list.substr(0, length)); });
    EXPECT_EQ(error.code(), ErrorCode::kCorrupt) << length;
  }
  for (std::size_t at = 0; at < whole_list.size(); ++at) {
    for (const char byte : {'\x7f', '\xff'}) {
      std::string changed = whole_list;
      changed[at] = byte;
      try {
        decode_held(changed);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kCorrupt) << at;
      }
    }
  }
  std::string many = whole_list;
  many.replace(0, 8, "\xff\xff\xff\xff\xff\xff\xff\x0f");
  EXPECT_THAT(error_of([&] { decode_held(many); }).what(), HasSubstr("counts"));
}

TEST(BoxPlan, a_list_reaches_the_other_ranks_as_it_was) {
  const std::vector<HeldBox> held = {
      whole("a", {1000, 30}), whole("c", {}), {"d", Dtype::kInt8, {3, 3}, {{1, 0}, {2, 1}}}};
  EXPECT_EQ(decode_held(encode(held)), held);
}

}  // namespace
}  // namespace paceline
