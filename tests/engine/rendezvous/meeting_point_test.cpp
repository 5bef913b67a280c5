#include "paceline/engine/rendezvous/meeting_point.h"

#include <set>

#include <gtest/gtest.h>

#include "tests/engine/rendezvous/variables_of.h"
#include "tests/harness/expect_error.h"

namespace paceline {
namespace {

LaunchEnvironment rank_of(const std::string& launcher, int world_size, int local_world_size,
                          const std::string& job_id = "") {
  return {.world_size = world_size,
          .local_world_size = local_world_size,
          .launcher = launcher,
          .job_id = job_id};
}

MeetingPoint find(const LaunchEnvironment& environment, const Variables& variables,
                  const std::string& init_method = "env://") {
  return find_meeting_point(init_method, environment, variables_of(variables));
}

const Variables kMaster = {{"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29500"}};

TEST(MeetingPoint, the_launchers_store_comes_first) {
  auto variables = kMaster;
  variables["PACELINE_STORE"] = "127.0.0.1:4321";
  const auto point = find(rank_of("paceline", 4, 4), variables);
  EXPECT_EQ(point.kind, MeetingPoint::Kind::kLauncher);
  EXPECT_EQ(point.endpoint, (Endpoint{"127.0.0.1", 4321}));
}

TEST(MeetingPoint, by_hand_rank_zero_hosts_at_the_master_address) {
  const auto point = find(rank_of("env", 4, 1), kMaster);
  EXPECT_EQ(point.kind, MeetingPoint::Kind::kRankZero);
  EXPECT_EQ(point.endpoint, (Endpoint{"node1", 29500}));
}

TEST(MeetingPoint, torchruns_own_store_keeps_its_port) {
  auto variables = kMaster;
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  EXPECT_EQ(find(rank_of("torchrun", 4, 2), variables).endpoint.port, 29501);
  variables["PACELINE_STORE_PORT"] = "31000";
  EXPECT_EQ(find(rank_of("torchrun", 4, 2), variables).endpoint.port, 31000);
}

TEST(MeetingPoint, ranks_of_one_host_meet_by_a_notice_named_after_the_job) {
  EXPECT_EQ(find(rank_of("openmpi", 4, 4, "77"), {}).job, "openmpi-77-0");
  EXPECT_EQ(find(rank_of("torchrun", 4, 4, "none"), kMaster).kind, MeetingPoint::Kind::kNotice);
}

TEST(MeetingPoint, several_hosts_without_an_address_are_told_how_to_give_one) {
  expect_error(ErrorCode::kInvalid, {"MASTER_ADDR", "mpirun -x MASTER_ADDR=", "-x MASTER_PORT="},
               [&] { find(rank_of("openmpi", 4, 2, "77"), {}); });
  expect_error(ErrorCode::kInvalid, {"MASTER_ADDR"}, [&] { find(rank_of("env", 2, 2), {}); });
  expect_error(ErrorCode::kInvalid, {"MASTER_PORT"}, [&] {
    find(rank_of("env", 2, 1), {{"MASTER_ADDR", "node1"}});
  });
  expect_error(ErrorCode::kInvalid, {"MASTER_PORT='65536'"}, [&] {
    find(rank_of("env", 2, 1), {{"MASTER_ADDR", "node1"}, {"MASTER_PORT", "65536"}});
  });
}

TEST(MeetingPoint, a_slurm_step_meets_on_its_first_node_at_a_port_of_its_own) {
  const auto environment = rank_of("slurm", 4, 2, "12.0");
  Variables step = {
      {"SLURM_JOB_ID", "12"}, {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NODELIST", "n[3-4]"}};
  EXPECT_EQ(find(environment, step).kind, MeetingPoint::Kind::kRankZero);
  EXPECT_EQ(find(environment, step).endpoint.host, "n3");
  std::set<int> ports;
  for (int job = 4'000'000; job < 4'000'100; ++job) {
    for (int number = 0; number < 10; ++number) {
      step["SLURM_JOB_ID"] = std::to_string(job);
      step["SLURM_STEP_ID"] = std::to_string(number);
      const int port = find(environment, step).endpoint.port;
      EXPECT_GT(port, 1023);
      EXPECT_LT(port, 32'768);
      ports.insert(port);
    }
  }
  EXPECT_EQ(ports.size(), 1000u);

  step["SLURM_STEP_RESV_PORTS"] = "12010-12011";
  EXPECT_EQ(find(environment, step).endpoint.port, 12'010);
  step["MASTER_PORT"] = "29500";
  EXPECT_EQ(find(environment, step).endpoint, (Endpoint{"n3", 29500}));
  step["MASTER_ADDR"] = "elsewhere";
  EXPECT_EQ(find(environment, step).endpoint, (Endpoint{"elsewhere", 29500}));
  EXPECT_EQ(find(rank_of("slurm", 4, 4, "12.0"), {}).kind, MeetingPoint::Kind::kNotice);
  for (const char* list : {"", "n[3", "n["}) {
    expect_error(ErrorCode::kInvalid, {"MASTER_ADDR", "SLURM_STEP_NODELIST", "srun"}, [&] {
      find(environment, {{"SLURM_STEP_NODELIST", list}});
    });
  }
  expect_error(ErrorCode::kInvalid, {"SLURM_STEP_RESV_PORTS"}, [&] {
    find(environment, {{"SLURM_STEP_NODELIST", "n1"}, {"SLURM_STEP_RESV_PORTS", "x"}});
  });
}

TEST(MeetingPoint, init_methods_are_parsed_or_named) {
  const auto environment = rank_of("none", 2, 1);
  EXPECT_EQ(find(environment, {}, "tcp://[::1]:80").endpoint, (Endpoint{"::1", 80}));
  EXPECT_EQ(find(environment, {}, "file:///tmp/x y").path, "/tmp/x y");
  for (const char* text : {"tcp://", "tcp://h", "tcp://h:0", "file://x", "http://h:1", ""}) {
    expect_error(ErrorCode::kInvalid, {text}, [&] { find(environment, {}, text); });
  }
}

}  // namespace
}  // namespace paceline
