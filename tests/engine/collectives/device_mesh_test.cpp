// A grid of ranks with named axes: the members of its groups, its picture, and what it refuses.

#include "paceline/engine/collectives/group/device_mesh.h"

#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/collectives/flight/explain.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/fresh_directory.h"
#include "tests/harness/says.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using detail::describe_mesh;
using harness::run_ranks;
using harness::run_ranks_ok;
using harness::Says;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using namespace std::chrono_literals;

std::shared_ptr<ProcessGroup> borrowed(ProcessGroup& group) {
  return {&group, [](ProcessGroup*) {}};
}

TEST(DeviceMesh, ranks_are_numbered_row_by_row) {
  run_ranks_ok(8, [](ProcessGroup& world) {
    const DeviceMesh mesh(borrowed(world), {{"pp", 2}, {"dp", 2}, {"tp", 2}});
    const int rank = world.rank();
    EXPECT_EQ(mesh.rank("pp"), rank / 4);
    EXPECT_EQ(mesh.rank("dp"), rank / 2 % 2);
    EXPECT_EQ(mesh.rank("tp"), rank % 2);
    EXPECT_EQ(mesh.size("tp"), 2);
    EXPECT_THAT(mesh.group("tp")->world_ranks(), ElementsAre(rank / 2 * 2, rank / 2 * 2 + 1));
    EXPECT_THAT(mesh.group("pp")->world_ranks(), ElementsAre(rank % 4, rank % 4 + 4));
    EXPECT_TRUE(mesh.has("dp"));
    EXPECT_FALSE(mesh.has("ep"));
    EXPECT_THAT(mesh.group("tp")->name(), HasSubstr("tp"));
  });
}

TEST(DeviceMesh, a_group_of_each_axis_adds_up_what_is_along_it) {
  for (const int world_size : {1, 2, 3, 6}) {
    run_ranks_ok(world_size, [&](ProcessGroup& world) {
      const int tp = world_size % 3 == 0 ? 3 : 1;
      const DeviceMesh mesh(borrowed(world), {{"dp", world_size / tp}, {"tp", tp}});
      const int rank = world.rank();
      int along_dp = 0, along_tp = 0;
      for (int i = 0; i < world_size / tp; ++i) along_dp += i * tp + rank % tp;
      for (int i = 0; i < tp; ++i) along_tp += rank / tp * tp + i;
      EXPECT_EQ(all_reduce_value(*mesh.group("dp"), rank), along_dp);
      EXPECT_EQ(all_reduce_value(*mesh.group("tp"), rank), along_tp);
    });
  }
}

TEST(DeviceMesh, memory_that_is_symmetric_in_the_world_is_in_every_axis) {
  run_ranks_ok(4, [](ProcessGroup& world) {
    const DeviceMesh mesh(borrowed(world), {{"dp", 2}, {"tp", 2}});
    const SymmetricBuffer of_world = world.allocate_symmetric(1 << 16);
    const auto numbers = of_world.as<float>();
    for (const char* axis : {"dp", "tp"}) {
      EXPECT_TRUE(mesh.group(axis)->is_symmetric(ConstBuffer(std::span<const float>(numbers))));
      std::fill(numbers.begin(), numbers.end(), static_cast<float>(world.rank()));
      mesh.group(axis)->all_reduce(numbers);
      const auto& members = mesh.group(axis)->world_ranks();
      const int sum = std::accumulate(members.begin(), members.end(), 0);
      EXPECT_EQ(numbers.front(), static_cast<float>(sum));
      EXPECT_EQ(numbers.back(), static_cast<float>(sum));
    }
    const SymmetricBuffer of_axis = mesh.group("tp")->allocate_symmetric(4096);
    EXPECT_NE(of_axis.of(1 - mesh.rank("tp")), nullptr);
  });
}

TEST(DeviceMesh, a_sub_mesh_shares_the_groups_of_its_axes) {
  run_ranks_ok(8, [](ProcessGroup& world) {
    const DeviceMesh mesh(borrowed(world), {{"pp", 2}, {"dp", 2}, {"tp", 2}});
    const DeviceMesh stage = mesh.sub_mesh({"tp", "dp"});
    EXPECT_EQ(to_string(stage.axes()), "dp=2,tp=2");
    EXPECT_EQ(stage.group("tp"), mesh.group("tp"));
    EXPECT_EQ(stage.world()->world_size(), 4);
    EXPECT_EQ(stage.world()->rank(), world.rank() % 4);
    EXPECT_EQ(all_reduce_value(*stage.world(), 1), 4);
    expect_error(ErrorCode::kInvalid, {"no axis 'pp'", "dp, tp"}, [&] { stage.group("pp"); });
    expect_error(ErrorCode::kInvalid, {"twice"}, [&] { mesh.sub_mesh({"tp", "tp"}); });
    expect_error(ErrorCode::kInvalid, {"at least one axis"}, [&] { mesh.sub_mesh({}); });
  });
}

TEST(DeviceMesh, the_text_of_an_option_is_read_and_written) {
  const auto axes = parse_mesh("dp=2,tp=1,pp=16");
  EXPECT_EQ(axes, (std::vector<MeshAxis>{{"dp", 2}, {"tp", 1}, {"pp", 16}}));
  EXPECT_EQ(to_string(axes), "dp=2,tp=1,pp=16");
  for (const char* text : {"", "dp", "dp=", "dp=x", "dp=2x", "dp=2,", "dp=2;tp=1", "=2", "d p=2",
                           "dp=0", "dp=-1", "dp=99999999999"}) {
    expect_error(ErrorCode::kInvalid, {"mesh: "}, [&] { parse_mesh(text); });
  }
  expect_error(ErrorCode::kInvalid, {"'tp'", "NAME=SIZE"}, [] { parse_mesh("dp=2,tp"); });
  expect_error(ErrorCode::kInvalid, {"axis dp occurs twice"}, [] { parse_mesh("dp=2,dp=2"); });
  expect_error(ErrorCode::kInvalid, {"axis tp has size 0"}, [] { parse_mesh("dp=2,tp=0"); });
}

TEST(DeviceMesh, what_no_mesh_can_be_is_refused_on_every_rank_and_the_group_goes_on) {
  run_ranks_ok(4, [](ProcessGroup& world) {
    const auto make = [&](const std::vector<MeshAxis>& axes) { DeviceMesh(borrowed(world), axes); };
    expect_error(ErrorCode::kInvalid, {"dp=2,tp=3 is for 6 ranks", "has 4"}, [&] {
      make({{"dp", 2}, {"tp", 3}});
    });
    expect_error(ErrorCode::kInvalid, {"occurs twice"}, [&] { make({{"dp", 2}, {"dp", 2}}); });
    expect_error(ErrorCode::kInvalid, {"size 0"}, [&] { make({{"dp", 0}, {"tp", 4}}); });
    expect_error(ErrorCode::kInvalid, {"size -4"}, [&] { make({{"dp", -4}, {"tp", -1}}); });
    expect_error(ErrorCode::kInvalid, {"no axes"}, [&] { make({}); });
    expect_error(ErrorCode::kInvalid, {"'' is not a name"}, [&] { make({{"", 4}}); });
    expect_error(ErrorCode::kInvalid, {"2147483648"}, [&] {
      make({{"a", 1 << 30}, {"b", 1 << 30}, {"c", 1 << 30}});
    });
    expect_error(ErrorCode::kInvalid, {"rank 0 has dp=2,tp=2, rank 3 has tp=2,dp=2"}, [&] {
      if (world.rank() == 3) make({{"tp", 2}, {"dp", 2}});
      make({{"dp", 2}, {"tp", 2}});
    });
    EXPECT_EQ(all_reduce_value(world, 1), 4);
  });
  expect_error(ErrorCode::kInvalid, {"is not a member"}, [] { DeviceMesh(nullptr, {{"dp", 1}}); });
}

TEST(DeviceMesh, the_drawing_shows_hosts_ranks_and_axes) {
  const std::vector<MeshAxis> axes = {{"pp", 2}, {"dp", 2}, {"tp", 2}};
  EXPECT_EQ(describe_mesh(axes, Hosts::blocks(2, 4)),
            "mesh pp=2,dp=2,tp=2: 8 ranks on 2 hosts\n"
            "  host 0  pp 0  dp 0  tp: rank 0 1\n"
            "  host 0  pp 0  dp 1  tp: rank 2 3\n"
            "  host 1  pp 1  dp 0  tp: rank 4 5\n"
            "  host 1  pp 1  dp 1  tp: rank 6 7\n"
            "pp: 2 ranks, 4 apart, across hosts\n"
            "dp: 2 ranks, 2 apart, within a host\n"
            "tp: 2 ranks, 1 apart, within a host\n");
  EXPECT_THAT(describe_mesh({{"dp", 2}, {"tp", 4}}, Hosts::blocks(4, 2)),
              AllOf(HasSubstr("  hosts 0, 1  dp 0  tp: rank 0 1 2 3\n"),
                    HasSubstr("tp: 4 ranks, 1 apart, across hosts\n"),
                    Says("mesh.axis_crosses_hosts", "tp", 2)));
  EXPECT_EQ(describe_mesh({{"dp", 1}}, Hosts::blocks(1, 1)),
            "mesh dp=1: 1 rank on 1 host\n  host 0  dp: rank 0\n");
  expect_error(ErrorCode::kInvalid, {"has 8 ranks", "have 2"},
               [&] { describe_mesh(axes, Hosts::blocks(1, 2)); });
  run_ranks_ok(2, [](ProcessGroup& world) {
    const DeviceMesh mesh(borrowed(world), {{"tp", 2}});
    EXPECT_THAT(mesh.describe(), HasSubstr("2 ranks on 1 host\n  host 0  tp: rank 0 1\n"));
  });
}

// Ranks 0 and 3 use the axes in one order, ranks 1 and 2 in the other, so four groups wait in a
// circle.
TEST(DeviceMesh, axes_called_in_different_orders_are_explained_in_a_sentence) {
  const FreshDirectory directory;
  run_ranks(4,
            [](ProcessGroup& world) {
              const DeviceMesh mesh(borrowed(world), {{"dp", 2}, {"tp", 2}});
              const bool dp_first = world.rank() == 0 || world.rank() == 3;
              float value = 1;
              mesh.group(dp_first ? "dp" : "tp")->all_reduce(std::span(&value, 1));
              mesh.group(dp_first ? "tp" : "dp")->all_reduce(std::span(&value, 1));
            },
            {.group_timeout = 1s, .flight_directory = directory.path()});
  const auto found = explain(read_flights(directory.path()).flights);
  EXPECT_EQ(found.verdict, Verdict::kCrossed) << found.sentence;
  EXPECT_THAT(found.sentence,
              AllOf(Says("explain.groups_crossed"),
                    HasSubstr("rank 0 in all_reduce #1 (float32 x 1, sum, group world.0.dp0)"),
                    HasSubstr("rank 2 in all_reduce #1 (float32 x 1, sum, group world.1.tp1)")));
}

}  // namespace
}  // namespace paceline
