#include "paceline/engine/telemetry/step_log.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "paceline/engine/core/error.h"

namespace paceline {
namespace {

class StepLogTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = (std::filesystem::temp_directory_path() / "paceline-steps-XXXXXX").string();
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    setenv("RANK", "7", 1);
  }
  void TearDown() override {
    unsetenv("RANK");
    unsetenv("PACELINE_STEP_LOG");
    std::filesystem::remove_all(folder_);
  }

  std::string folder_;
};

TEST_F(StepLogTest, writes_a_line_a_step_into_the_ranks_file) {
  setenv("PACELINE_STEP_LOG", folder_.c_str(), 1);
  StepLog log;
  log.model(1000);
  log.step(32, 0.5, 0.125);
  std::ifstream file(folder_ + "/rank-007.jsonl");
  std::string model, step, rest;
  std::getline(file, model);
  std::getline(file, step);
  EXPECT_EQ(model, R"({"event":"model","parameter_bytes":1000})");
  EXPECT_EQ(step, R"({"event":"step","samples":32,"seconds":0.5,"communication":0.125})");
  EXPECT_FALSE(std::getline(file, rest));
}

TEST_F(StepLogTest, writes_nothing_unless_asked) {
  StepLog log;
  log.step(32, 0.5, 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(StepLogTest, only_the_first_of_a_process_counts) {
  setenv("PACELINE_STEP_LOG", folder_.c_str(), 1);
  {
    StepLog first, second;
    EXPECT_TRUE(first.counts());
    EXPECT_FALSE(second.counts());
    for (StepLog* log : {&first, &second}) {
      log->begin_at(3);
      log->model(1000);
      log->step(32, 0.5, 0.125);
    }
  }
  EXPECT_TRUE(StepLog().counts());
  std::ifstream file(folder_ + "/rank-007.jsonl");
  EXPECT_EQ(std::count(std::istreambuf_iterator<char>(file), {}, '\n'), 2);
}

TEST_F(StepLogTest, a_folder_that_is_not_there_is_named) {
  setenv("PACELINE_STEP_LOG", "/nonexistent/steps", 1);
  try {
    const StepLog log;
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("/nonexistent/steps"), std::string::npos);
  }
}

}  // namespace
}  // namespace paceline
