// `paceline doctor` through the real command.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/launch/paceline_process.h"

namespace paceline::launch {
namespace {

using testing::HasSubstr;

TEST(Doctor, says_what_is_there) {
  const Outcome outcome = run_paceline({"doctor"});
  for (const char* name :
       {"build", "LibTorch", "BLAS", "cpu", "cores", "memory", "/dev/shm", "memfd", "open files",
        "huge pages", "loopback", "launcher", "backend paceline", "backend gloo", "backend mpi",
        "backend oneccl", "backend nccl", "transport ucx"}) {
    EXPECT_THAT(outcome.out, HasSubstr(name));
  }
  EXPECT_EQ(outcome.exit_code == 0, outcome.out.find("FAIL") == std::string::npos) << outcome.out;
}

TEST(Doctor, a_backend_is_there_or_has_a_reason_and_a_way_to_get_it) {
  const auto report = nlohmann::json::parse(run_paceline({"doctor", "--json"}).out);
  for (const auto& check : report["checks"]) {
    if (!check["name"].get<std::string>().starts_with("backend ")) continue;
    const bool absent = check["text"].get<std::string>().starts_with("not built: ");
    EXPECT_EQ(check["verdict"], absent ? "WARN" : "OK") << check;
    EXPECT_EQ(check["advice"] != "", absent) << check;
  }
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

TEST(Doctor, refuses_what_it_does_not_know) {
  EXPECT_EQ(run_paceline({"doctor", "--jsno"}).exit_code, 2);
  EXPECT_EQ(run_paceline({"doctor", "now"}).exit_code, 2);
}

TEST(Version, names_version_and_compiler) {
  EXPECT_THAT(run_paceline({"--version"}).out, HasSubstr("paceline 0."));
}

}  // namespace
}  // namespace paceline::launch
