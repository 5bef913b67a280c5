#include <chrono>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "paceline/engine/rendezvous/meeting_point.h"

#include "tests/engine/rendezvous/variables_of.h"
#include "tests/harness/expect_error.h"
#include "tests/harness/fresh_directory.h"
#include "tests/harness/says.h"

namespace paceline {
namespace {

using harness::Says;
using testing::AllOf;
using testing::HasSubstr;

class BulletinTest : public testing::Test {
 protected:
  FreshDirectory directory_;
  GetVariable variables_ = variables_of({{"XDG_RUNTIME_DIR", directory_.path()}});
};

TEST_F(BulletinTest, a_notice_is_private_and_read_as_it_was_published) {
  Bulletin bulletin(variables_, "mpi-../7");
  EXPECT_FALSE(bulletin.read());
  const auto secret = Secret::generate();
  bulletin.publish({"127.0.0.1", 1}, Secret::generate());
  bulletin.publish({"127.0.0.1", 4321}, secret);
  const auto notice = Bulletin(variables_, "mpi-../7").read();
  ASSERT_TRUE(notice);
  EXPECT_EQ(notice->endpoint, (Endpoint{"127.0.0.1", 4321}));
  EXPECT_EQ(notice->secret.to_hex(), secret.to_hex());
  struct stat status {};
  ASSERT_EQ(::stat(bulletin.path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600U);
  EXPECT_EQ(std::filesystem::path(bulletin.path()).parent_path(), directory_.file("paceline"));
  bulletin.remove();
  EXPECT_TRUE(std::filesystem::is_empty(directory_.file("paceline")));
}

// An unusable XDG_RUNTIME_DIR is reported, and both sides then meet in /tmp.
TEST(Bulletin, a_runtime_directory_that_cannot_be_used_is_named_and_replaced) {
  const FreshDirectory directory;
  std::ofstream(directory.file("file")) << "";
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"/proc/self", "mkdir /proc/self/paceline"},  // a directory in which no files can be made
      {directory.file("missing"), "No such file or directory"},
      {directory.file("file"), "is not a directory of user"},
  };
  for (const auto& [runtime, words] : rows) {
    const auto variables = variables_of({{"XDG_RUNTIME_DIR", runtime}});
    const std::string job = directory.path();  // different for every test
    const auto secret = Secret::generate();
    Bulletin bulletin(variables, job);
    testing::internal::CaptureStderr();
    bulletin.publish({"127.0.0.1", 77}, secret);
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_THAT(said, AllOf(HasSubstr(words), HasSubstr("/tmp/paceline-"),
                            Says("rendezvous.meets_elsewhere")))
        << runtime;
    const auto notice = Bulletin(variables, job).read();
    ASSERT_TRUE(notice) << runtime;
    EXPECT_EQ(notice->secret.to_hex(), secret.to_hex());
    bulletin.remove();
    EXPECT_FALSE(Bulletin(variables, job).read());
  }
}

TEST_F(BulletinTest, of_two_notices_the_newer_one_is_read) {
  const std::string job = directory_.path();
  Bulletin full(variables_of({}), job), usual(variables_, job);
  usual.publish({"127.0.0.1", 1}, Secret::generate());  // left by an earlier job
  std::filesystem::last_write_time(
      usual.path(), std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
  full.publish({"127.0.0.1", 2}, Secret::generate());
  const auto notice = Bulletin(variables_, job).read();
  ASSERT_TRUE(notice);
  EXPECT_EQ(notice->endpoint.port, 2);
  full.remove();
  usual.remove();
}

TEST_F(BulletinTest, a_directory_that_others_may_enter_is_refused) {
  ASSERT_EQ(::mkdir(directory_.file("paceline").c_str(), 0700), 0);
  ASSERT_EQ(::chmod(directory_.file("paceline").c_str(), 0755), 0);
  expect_error(ErrorCode::kInvalid, {directory_.file("paceline"), "0700"},
               [&] { Bulletin(variables_, "job"); });
}

TEST_F(BulletinTest, a_symbolic_link_is_refused) {
  std::filesystem::create_directory(directory_.file("elsewhere"));
  std::filesystem::create_symlink(directory_.file("elsewhere"), directory_.file("paceline"));
  expect_error(ErrorCode::kInvalid, {directory_.file("paceline")},
               [&] { Bulletin(variables_, "job"); });
}

}  // namespace
}  // namespace paceline
