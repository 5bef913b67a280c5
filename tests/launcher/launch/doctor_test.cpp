// `paceline doctor` through the real command.

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "paceline/engine/collectives/selection/calibration.h"

#include "tests/harness/says.h"
#include "tests/launcher/launch/paceline_process.h"

namespace paceline::launcher {
namespace {

using harness::Says;
using testing::ContainsRegex;
using testing::HasSubstr;

TEST(Doctor, says_what_is_there) {
  const Outcome outcome = run_paceline({"doctor", "--json", "--json=false"});
  for (const char* name : {"build",
                           "LibTorch",
                           "BLAS",
                           "cpu",
                           "cores",
                           "memory",
                           "/dev/shm",
                           "memfd",
                           "open files",
                           "huge pages",
                           "loopback",
                           "launcher",
                           "backend paceline",
                           "backend gloo",
                           "backend mpi",
                           "backend oneccl",
                           "backend nccl",
                           "GPUs",
                           "transport ucx",
                           "reduce kernel",
                           "encryption",
                           "calibration",
                           "bench --peer",
                           "MPICH"}) {
    EXPECT_THAT(outcome.out, HasSubstr(name));
  }
  EXPECT_EQ(outcome.exit_code == 0, outcome.out.find("FAIL") == std::string::npos) << outcome.out;
}

TEST(Doctor, an_optional_part_that_is_absent_is_information_with_a_way_to_get_it) {
  const auto report = nlohmann::json::parse(run_paceline({"doctor", "--json"}).out);
  int num_parts = 0;
  for (const auto& check : report["checks"]) {
    const std::string name = check["name"], text = check["text"];
    if (!name.starts_with("backend ") && name != "transport ucx" && name != "LibTorch") continue;
    const bool absent = text.starts_with("not built: ") || text.starts_with("not available: ");
    EXPECT_EQ(check["verdict"], absent ? "INFO" : "OK") << check;
    EXPECT_EQ(check["advice"] != "", absent) << check;
    ++num_parts;
  }
  EXPECT_GE(num_parts, 7) << report;
}

TEST(Doctor, a_contradictory_environment_fails_with_advice) {
  const Outcome outcome = run_paceline({"doctor", "--json"}, {{"RANK", "3"}, {"WORLD_SIZE", "2"}});
  EXPECT_EQ(outcome.exit_code, 3);
  const auto report = nlohmann::json::parse(outcome.out);
  EXPECT_FALSE(report["ok"]);
  for (const auto& check : report["checks"]) {
    if (check["name"] == "launcher") {
      EXPECT_EQ(check["verdict"], "FAIL");
      EXPECT_THAT(check["text"], HasSubstr("RANK"));
      EXPECT_NE(check["advice"], "");
    }
  }
}

TEST(Doctor, knows_a_calibration_its_age_and_its_noise) {
  const FreshDirectory directory;
  const std::string path = directory.file("costs.json");
  const auto line_of = [&] {
    const Outcome outcome = run_paceline({"doctor", "--json"}, {{"PACELINE_CALIBRATION", path}});
    const auto report = nlohmann::json::parse(outcome.out);
    for (const auto& check : report["checks"]) {
      if (check["name"] == "calibration") return check;
    }
    return nlohmann::json();
  };
  EXPECT_THAT(line_of()["text"].get<std::string>(), Says("doctor.not_calibrated"));
  CostModel costs;
  costs.origin = "box of 2026-01-02";
  save_calibration(costs, path);
  EXPECT_EQ(line_of()["verdict"], "OK");
  EXPECT_THAT(line_of()["text"], HasSubstr("box of 2026-01-02 in " + path));
  costs.spread = 1.05;
  save_calibration(costs, path);
  EXPECT_EQ(line_of()["verdict"], "WARN");
  EXPECT_THAT(line_of()["text"].get<std::string>(), Says("doctor.calibration_noisy"));
  EXPECT_EQ(line_of()["advice"], "paceline bench --calibrate");
  std::ofstream(path) << "nonsense";
  EXPECT_EQ(line_of()["verdict"], "WARN");
  EXPECT_THAT(line_of()["text"].get<std::string>(), Says("doctor.calibration_unreadable", path));
}

TEST(Doctor, refuses_what_it_does_not_know) {
  EXPECT_EQ(run_paceline({"doctor", "--jsno"}).exit_code, 2);
  EXPECT_EQ(run_paceline({"doctor", "now"}).exit_code, 2);
}

TEST(Version, names_version_commit_and_compiler) {
  EXPECT_THAT(run_paceline({"--version"}).out,
              ContainsRegex("^paceline 0[.][0-9]+[.][0-9]+ [(](commit [0-9a-f]{7,}[+]?, )?[A-Z]"));
}

}  // namespace
}  // namespace paceline::launcher
