// How a program ends after an exception in run_guarded().

#include <stdexcept>

#include <gtest/gtest.h>

#include "paceline/engine/core/error.h"
#include "paceline/training/train/training_process.h"

namespace paceline::train {
namespace {

using testing::ExitedWithCode;

void end_with(const auto& thrown) {
  run_guarded([&]() -> int { throw thrown; });
}

TEST(RunGuardedDeathTest, the_exit_code_tells_the_kind_of_an_exception) {
  EXPECT_EXIT(end_with(DamagedState("rank 1: a")), ExitedWithCode(86), "^error: rank 1: a\n$");
  EXPECT_EXIT(end_with(Error(ErrorCode::kInvalid, "b")), ExitedWithCode(2), "^error: b\n$");
  EXPECT_EXIT(end_with(Error(ErrorCode::kUnsupported, "c")), ExitedWithCode(2), "^error: c\n$");
  EXPECT_EXIT(end_with(Error(ErrorCode::kAborted, "d")), ExitedWithCode(1), "^error: d\n$");
  EXPECT_EXIT(end_with(std::runtime_error("e")), ExitedWithCode(1),
              "^error: std::runtime_error: e\n$");
}

TEST(RunGuarded, without_an_exception_it_is_what_the_program_returns) {
  EXPECT_EQ(run_guarded([] { return 7; }), 7);
}

}  // namespace
}  // namespace paceline::train
