#include "paceline/files/checkpoint/writer_claim.h"

#include <atomic>
#include <barrier>
#include <chrono>
#include <filesystem>
#include <optional>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include "tests/files/checkpoint/error_of.h"
#include "tests/files/checkpoint/test_directory.h"
#include "tests/harness/says.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using harness::Says;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::SizeIs;
using testing::TestDirectory;

std::vector<std::string> names_in(const std::string& path) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(path)) names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

class Writers : public ::testing::Test {
 protected:
  std::unique_ptr<WriterClaim> claim(const WriterId& who, std::chrono::milliseconds timeout = 0ms) {
    return std::make_unique<WriterClaim>(folder_.path(), who, timeout, FileSystem::real());
  }
  Error refusal(const WriterId& who) {
    return error_of([&] { claim(who); });
  }

  TestDirectory folder_;
};

TEST_F(Writers, follow_one_that_has_ended_and_leave_nothing_of_it) {
  auto writer = claim({"x", 0});
  EXPECT_EQ(writer->workspace(), folder_ / ".writer-00000001");
  testing::write_text(writer->workspace() + "/half", "written");
  writer.reset();
  writer = claim({"another", 0});
  writer->check_held();
  EXPECT_THAT(names_in(folder_.path()), ElementsAre(".writer-00000002"));
  EXPECT_THAT(names_in(writer->workspace()), ElementsAre("owner.json"));
}

TEST_F(Writers, are_refused_while_another_job_writes_and_are_told_which) {
  const auto writer = claim({"x", 0});
  for (const WriterId& other : {WriterId{"y", 5}, WriterId{"", 5}, WriterId{"x", 0}}) {
    const auto error = refusal(other);
    EXPECT_EQ(error.code(), ErrorCode::kInvalid);
    EXPECT_THAT(error.what(), Says("checkpoint.other_writer", ::getpid()));
  }
  writer->check_held();
  EXPECT_THAT(names_in(folder_.path()), ElementsAre(".writer-00000001"));
}

TEST_F(Writers, of_no_known_job_never_take_over) {
  const auto writer = claim({"", 0});
  EXPECT_EQ(refusal({"", 1}).code(), ErrorCode::kInvalid);
  writer->check_held();
}

TEST_F(Writers, of_a_newer_generation_take_over_from_one_that_lives) {
  const auto first = claim({"x", 0});
  const auto second = claim({"x", 1});
  const auto third = claim({"x", 4});
  third->check_held();
  for (const auto* deposed : {&first, &second}) {
    const auto error = error_of([&] { (*deposed)->check_held(); });
    EXPECT_EQ(error.code(), ErrorCode::kAborted);
    EXPECT_THAT(error.what(), Says("checkpoint.taken_over", 4));
    EXPECT_FALSE(fs::exists((*deposed)->workspace()));
  }
  EXPECT_THAT(names_in(folder_.path()), ElementsAre(".writer-00000003"));
}

TEST_F(Writers, of_an_older_generation_are_refused) {
  const auto writer = claim({"x", 2});
  const auto error = refusal({"x", 1});
  EXPECT_EQ(error.code(), ErrorCode::kAborted);
  EXPECT_THAT(error.what(), Says("checkpoint.newer_writer", 2));
  EXPECT_THAT(error.what(), Says("checkpoint.replaced", 1));
  EXPECT_THAT(names_in(writer->workspace()), ElementsAre("owner.json"));
}

TEST_F(Writers, of_two_jobs_with_one_name_do_not_take_over_from_each_other) {
  auto writer = claim({"none", 0});
  EXPECT_EQ(refusal({"none", 0}).code(), ErrorCode::kInvalid);
  EXPECT_EQ(refusal({"none", 1}).code(), ErrorCode::kInvalid);
  writer->check_held();
  writer.reset();
  claim({"none", 1});
}

TEST_F(Writers, of_the_past_have_left_what_a_dead_claim_leaves) {
  fs::create_directory(folder_ / ".writer-new-0123");
  fs::create_directory(folder_ / ".writer-new-4567");
  testing::write_text(folder_ / ".writer-new-4567/owner.json", "");
  fs::create_directory(folder_ / ".writer-00000007");
  fs::create_directory(folder_ / ".writer-7");
  testing::write_text(folder_ / ".writer-00000008x", "");
  const auto writer = claim({"x", 0});
  EXPECT_EQ(writer->workspace(), folder_ / ".writer-00000008");
  EXPECT_THAT(names_in(folder_.path()),
              ElementsAre(".writer-00000008", ".writer-00000008x", ".writer-7"));
}

// Calls `body` on `count` threads, all at the same time.
void at_once(std::size_t count, const std::function<void(std::size_t)>& body) {
  std::barrier start(static_cast<std::ptrdiff_t>(count));
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      start.arrive_and_wait();
      body(i);
    });
  }
}

TEST_F(Writers, are_not_held_up_by_numbers_that_no_writer_has) {
  for (const char* number : {"9223372036854775807", "1099511627776"})
    testing::write_text(folder_ / (std::string(".writer-") + number), "");
  EXPECT_NO_THROW(claim({"job", 0}));
  testing::write_text(folder_ / ".writer-1099511627775", "");
  EXPECT_THAT(refusal({"job", 0}).what(), ::testing::HasSubstr(".writer-1099511627775"));
}

TEST_F(Writers, that_start_at_the_same_time_are_one) {
  for (int round = 0; round < 30; ++round) {
    std::vector<std::unique_ptr<WriterClaim>> writers(6);
    std::atomic<int> refused = 0;
    at_once(writers.size(), [&](std::size_t i) {
      try {
        writers[i] = claim({"job " + std::to_string(i), 0});
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kInvalid) << error.what();
        ++refused;
      }
    });
    EXPECT_EQ(refused, 5) << "round " << round;
    for (const auto& writer : writers) {
      if (writer) writer->check_held();
    }
    EXPECT_THAT(names_in(folder_.path()), SizeIs(1)) << "round " << round;
  }
}

TEST_F(Writers, of_many_generations_at_the_same_time_end_with_the_newest) {
  for (int round = 0; round < 30; ++round) {
    std::vector<std::unique_ptr<WriterClaim>> writers(6);
    at_once(writers.size(), [&](std::size_t i) {
      try {
        writers[i] = claim({"x", static_cast<int>(i)});
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kAborted) << error.what();
      }
    });
    ASSERT_TRUE(writers.back());
    writers.back()->check_held();
    for (std::size_t i = 0; i + 1 < writers.size(); ++i) {
      if (!writers[i]) continue;
      EXPECT_THROW(writers[i]->check_held(), Error) << i;
    }
    EXPECT_THAT(names_in(folder_.path()), SizeIs(1)) << "round " << round;
  }
}

}  // namespace
}  // namespace paceline
