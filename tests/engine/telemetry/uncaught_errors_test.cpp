#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <stdexcept>
#include <thread>
#include <typeinfo>

#include <gtest/gtest.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/telemetry/crash_reporter.h"

namespace paceline {
namespace {

using testing::ExitedWithCode;
using testing::KilledBySignal;

// Throws an exception that nothing catches, as if it left main().
template <class Thrown>
void leave_with(const Thrown& thrown) {
  std::thread([&] { throw thrown; }).join();
}

template <class Thrown>
void reported(const Thrown& thrown, int rank = -1) {
  log::set_rank(rank);
  report_uncaught_errors();
  report_uncaught_errors();  // the second call changes nothing
  leave_with(thrown);
}

class UncaughtErrorsDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(UncaughtErrorsDeathTest, an_error_is_one_line_and_an_exit_code_that_tells_its_kind) {
  for (const auto& [code, exit_code] : std::map<ErrorCode, int>{{ErrorCode::kInvalid, 2},
                                                                {ErrorCode::kUnsupported, 2},
                                                                {ErrorCode::kTimeout, 1},
                                                                {ErrorCode::kPeerLost, 1},
                                                                {ErrorCode::kAborted, 1},
                                                                {ErrorCode::kCorrupt, 1},
                                                                {ErrorCode::kSystem, 1}}) {
    EXPECT_EXIT(reported(Error(code, "rank 1: broadcast: no root")), ExitedWithCode(exit_code),
                "^error: rank 1: broadcast: no root\n$");
  }
  EXPECT_EXIT(reported(DamagedState("rank 1: weight")), ExitedWithCode(86),
              "^error: rank 1: weight\n$");
}

TEST_F(UncaughtErrorsDeathTest, another_exception_is_named_with_its_type_and_the_rank) {
  EXPECT_EXIT(reported(std::runtime_error("no such key"), 2), ExitedWithCode(1),
              "^error: rank 2: std::runtime_error: no such key\n$");
}

// Like a program that reads its data before init_process_group().
TEST_F(UncaughtErrorsDeathTest, an_exception_before_any_call_of_the_library_is_reported_too) {
  EXPECT_EXIT(leave_with(std::runtime_error("no such file")), ExitedWithCode(1),
              "^error: std::runtime_error: no such file\n$");
}

TEST_F(UncaughtErrorsDeathTest, an_object_that_is_not_an_exception_ends_as_in_any_program) {
  EXPECT_EXIT(reported(7), KilledBySignal(SIGABRT), "instance of 'int'");
}

TEST_F(UncaughtErrorsDeathTest, buffered_stdout_is_written_first) {
  const auto writes = [] {
    std::setvbuf(stdout, nullptr, _IOFBF, 4096);
    dup2(STDERR_FILENO, STDOUT_FILENO);
    std::printf("epoch 1\n");
    reported(std::runtime_error("gone"));
  };
  EXPECT_EXIT(writes(), ExitedWithCode(1), "epoch 1\nerror: std::runtime_error: gone\n$");
}

TEST_F(UncaughtErrorsDeathTest, a_programs_own_handler_and_the_variable_have_their_way) {
  const auto own = [] {
    std::set_terminate([] { _exit(9); });
    reported(std::runtime_error("gone"));
  };
  EXPECT_EXIT(own(), ExitedWithCode(9), "");
  const auto off = [] {
    setenv("PACELINE_CRASH_REPORT", "0", 1);
    reported(std::runtime_error("gone"));
  };
  EXPECT_EXIT(off(), KilledBySignal(SIGABRT), "terminate called");
}

TEST(UncaughtErrors, the_frames_of_libtorch_are_left_out) {
  const char* const type = typeid(std::runtime_error).name();
  EXPECT_EQ(uncaught_text(type,
                          "shapes cannot be multiplied (2x3 and 4x5)\nsecond line\nException "
                          "raised from meta at Linear.cpp:7 (most recent call first):\nframe #0: "
                          "c10::Error\nframe #1: main\n",
                          0),
            "error: rank 0: std::runtime_error: shapes cannot be multiplied (2x3 and 4x5)\n"
            "second line\nException raised from meta at Linear.cpp:7\n");
  EXPECT_EQ(uncaught_text(type, "", -1), "error: std::runtime_error: no error message\n");
  EXPECT_EQ(uncaught_text(typeid(std::bad_alloc).name(), std::bad_alloc().what(), -1),
            "error: std::bad_alloc: a memory allocation failed; check ulimit -v and the requested "
            "size\n");
}

}  // namespace
}  // namespace paceline
