#include "paceline/rendezvous/bulletin.h"

#include <filesystem>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/harness/expect_error.h"
#include "tests/harness/fresh_directory.h"
#include "tests/rendezvous/variables_of.h"

namespace paceline {
namespace {

class BulletinTest : public testing::Test {
 protected:
  FreshDirectory directory_;
  GetVariable variables_ = variables_of({{"XDG_RUNTIME_DIR", directory_.path()}});
};

TEST_F(BulletinTest, a_notice_is_private_and_read_as_it_was_published) {
  const Bulletin bulletin(variables_, "mpi-../7");
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
